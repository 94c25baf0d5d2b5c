"""``PayloadStore``: a store that encodes values on their way into the database and decodes them on the way out.

The engine above sees plain JSON, the database below sees envelopes. Intents without values are passed on. An app
without ``codec=`` and ``blobs=`` uses its store directly.

A blob is written, and durable, before the call whose rows refer to it. A write that is repeated uses the envelopes of
its first attempt, because the store recognises a repeated call by its content.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from holdfast.errors import PayloadError, StoreError
from holdfast.payloads.blobs import Blobs, DatabaseBlobs
from holdfast.payloads.places import Open, Seal
from holdfast.payloads.replies import OPENERS, Opener
from holdfast.payloads.sealing import Place, Sealer, SealSettings
from holdfast.store.protocol import (
    Advance,
    Advanced,
    Claim,
    Claimant,
    ClaimRequest,
    ClaimResult,
    Commit,
    Committed,
    ControlRequest,
    ControlResult,
    Created,
    CurrentRuns,
    Heartbeat,
    LateResults,
    NewEvent,
    NewRun,
    OutboxClaim,
    OutboxRequest,
    Query,
    RunByName,
    RunRecord,
    RunsById,
    ScheduleChange,
    ScheduleChanged,
    Sent,
    Store,
)
from holdfast.store.protocol.streams import StreamWrite, StreamWritten

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger("holdfast")

_FIRST_PAUSE, _MAX_PAUSE = 0.05, 2.0
"""Seconds between attempts to read blobs."""
_KNOWN_RUNS = 20_000
_REPEATABLE = 64


class PayloadStore:
    """A store whose values are encoded in ``store``. ``blobs`` is None for an app without a blob store."""

    def __init__(self, store: Store, settings: SealSettings, blobs: Blobs | None, new_id: Callable[[], str]) -> None:
        self.inner = store
        self.settings = settings
        self.blob_store = blobs
        self._new_id = new_id
        self._homes: OrderedDict[int, str] = OrderedDict()
        """Pids by run: the rows of a run do not name their instance."""
        self._forks: set[int] = set()
        self._failed: OrderedDict[tuple[int, ...], tuple[Sequence[Any], list[Any], list[str]]] = OrderedDict()
        """Sealed forms of writes that failed and may be repeated, by the ids of the originals."""

    def __getattr__(self, name: str) -> Any:
        if name == "collect_blobs" and self.blob_store is not None:
            return self.blob_store.collect
        if name == "prepare_blobs" and self.blob_store is not None:
            return self.blob_store.prepare
        return getattr(self.inner, name)

    # --- one value, for other parts of the engine that store values of a run

    async def seal_value(self, data: bytes, place: Place, *, inline: bool, name: str | None) -> bytes:
        """Encode one value. A blob is durable when this returns."""
        sealer = self._sealer()
        sealed = sealer.seal(data, place, inline=inline, name=name)
        await self._write_blobs(sealer)
        return sealed

    async def decode_value(self, data: bytes, pid: str, role: str) -> bytes:
        """Decode one value. A value that cannot be decoded is returned as an envelope with the error."""
        return cast("bytes", await self._opened(lambda opening: opening.value(data, pid, role)))

    # --- writes

    async def create(self, runs: Sequence[NewRun], *, connection: Any = None) -> list[Created]:
        created = await self._write(
            runs, lambda seal: [seal.new_run(new) for new in runs],
            lambda sealed: self.inner.create(sealed, connection=connection), inline=self._beside(connection),
        )  # fmt: skip
        return await self._reply(lambda opening: [self._created(opening, one) for one in created])

    async def send(self, events: Sequence[NewEvent], *, connection: Any = None) -> list[Sent]:
        sent = await self._write(
            events, lambda seal: [seal.new_event(event) for event in events],
            lambda sealed: self.inner.send(sealed, connection=connection), inline=self._beside(connection),
        )  # fmt: skip
        return await self._reply(lambda opening: [self._sent(opening, one) for one in sent])

    async def control(self, request: ControlRequest, audit: Any = None) -> ControlResult:
        written = await self._write(
            [request], lambda seal: [seal.control(request)],
            lambda sealed: _one(self.inner.control(sealed[0], audit)),
        )  # fmt: skip
        result = cast("ControlResult", written[0])
        if result.run is None:
            return result
        before = result.run
        return result._replace(run=await self._reply(lambda opening: self._run(opening, replace(before))))

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        homes = await self._homes_of(commit.task.run for commit in commits)
        committed = await self._write(
            commits, lambda seal: [seal.commit(commit, homes[commit.task.run]) for commit in commits],
            self.inner.commit, inline=self._in_transaction(commits),
        )  # fmt: skip
        return await self._reply(lambda opening: [self._committed(opening, one) for one in committed])

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, claim_limit: int) -> Advanced:
        homes = await self._homes_of(advance.task.run for advance in advances)
        [advanced] = await self._write(
            advances, lambda seal: [seal.advance(advance, homes[advance.task.run]) for advance in advances],
            lambda sealed: _one(self.inner.advance(sealed, claimant, claim_limit)),
        )  # fmt: skip
        return cast("Advanced", advanced)

    async def add_late_results(self, results: LateResults) -> bool:
        home = (await self._homes_of([results.run]))[results.run]
        [added] = await self._write(
            [results],
            lambda seal: [LateResults(results.run, seal.facts(results.facts, home), seal.logs(results.logs, home))],
            lambda sealed: _one(self.inner.add_late_results(sealed[0])),
        )
        return cast("bool", added)

    async def record_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None:
        homes = await self._homes_of(beat.task.run for beat in heartbeats)
        seal = Seal(self._sealer())
        await self.inner.record_heartbeats(
            [Heartbeat(beat.task, seal.fact(beat.fact, homes[beat.task.run])) for beat in heartbeats]
        )

    async def write_streams(self, writes: Sequence[StreamWrite]) -> list[StreamWritten]:
        homes = await self._homes_of(write.task.run for write in writes)
        return await self._write(
            writes, lambda seal: [seal.stream_write(write, homes[write.task.run]) for write in writes],
            self.inner.write_streams,
        )  # fmt: skip

    async def change_schedules(self, changes: Sequence[ScheduleChange]) -> list[ScheduleChanged]:
        def sealed_change(seal: Seal, change: ScheduleChange) -> ScheduleChange:
            row = None if change.row is None else seal.schedule(change.row)
            return replace(change, row=row, runs=[seal.new_run(new) for new in change.runs])

        changed = await self._write(
            changes, lambda seal: [sealed_change(seal, change) for change in changes], self.inner.change_schedules
        )
        return await self._reply(
            lambda opening: [
                one._replace(created=[self._created(opening, created) for created in one.created]) for one in changed
            ]
        )

    async def _write(
        self, originals: Sequence[Any], make: Callable[[Seal], list[Any]], call: Callable[[list[Any]], Any],
        *, inline: bool = False,
    ) -> list[Any]:  # fmt: skip
        """Seal a batch, write its blobs, then write the batch."""
        key = tuple(map(id, originals))
        sealed, written = self._repeated(key, originals)
        repeated = True
        if sealed is None:
            sealer = self._sealer()
            sealer.inline = inline
            sealed = make(Seal(sealer))
            written = await self._write_blobs(sealer)
            repeated = False
        try:
            if repeated and self.blob_store is not None:
                await self.blob_store.renew(written)
            return cast("list[Any]", await call(sealed))
        except StoreError:
            self._failed[key] = originals, sealed, written
            if len(self._failed) > _REPEATABLE:
                self._failed.popitem(last=False)
            raise

    def _in_transaction(self, commits: Sequence[Commit]) -> bool:
        """True if a commit ends a live transaction, and blobs are written to the same database.

        On SQLite the write of a blob would wait for that transaction, which waits for this commit.
        """
        return self._in_database and any(commit.observed.transaction is not None for commit in commits)

    def _beside(self, connection: Any) -> bool:
        """True if the rows are written in a transaction of the caller, and blobs in the same database.

        On SQLite the write of a blob would wait for that transaction, which waits for this call.
        """
        return self._in_database and connection is not None

    @property
    def _in_database(self) -> bool:
        return self.blob_store is not None and isinstance(self.blob_store.blob_store, DatabaseBlobs)

    def _repeated(self, key: tuple[int, ...], originals: Sequence[Any]) -> tuple[list[Any] | None, list[str]]:
        """The sealed form of the same objects and its blobs, if an earlier call with them failed."""
        if not self._failed:
            return None, []
        kept = self._failed.pop(key, None)
        same = kept is not None and all(map(operator.is_, kept[0], originals))
        return (kept[1], kept[2]) if kept is not None and same else (None, [])

    async def _write_blobs(self, sealer: Sealer) -> list[str]:
        """Write the blobs of sealed values; returns their ids."""
        writes = sealer.take_writes()
        if writes and self.blob_store is not None:
            await self.blob_store.write(writes)
        return [write.id for write in writes]

    # --- reads

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        result = await self.inner.claim(request)
        return await self._reply(
            lambda opening: replace(
                result,
                claims=[self._claim(opening, claim) for claim in result.claims],
                overdue=[self._claim(opening, claim) for claim in result.overdue],
            )
        )

    async def read(self, query: Query[R]) -> R:
        open_reply = OPENERS.get(type(query))
        if open_reply is None:
            return await self.inner.read(query)
        run: int | None = getattr(query, "run", None)
        home = "" if run is None else (await self._homes_of([run]))[run]
        opened, missing = await self._read(query, open_reply, home)
        while missing:
            # The run may have been deleted between the read of its row and that of its blob: the row is read again.
            again, still_missing = await self._read(query, open_reply, home)
            opened, missing = again, still_missing - missing
        return cast("R", opened)

    async def _read(self, query: Query[Any], open_reply: Opener, home: str) -> tuple[Any, set[str]]:
        """Read and open a reply; returns also the ids of the blobs that are missing."""
        reply = await self.inner.read(query)
        if isinstance(query, RunsById | RunByName | CurrentRuns):
            for found in cast("list[RunRecord]", reply):
                self._know(found)
        # A list does not read blobs: it would read one for each row that it shows.
        fetch, sealer = not isinstance(query, CurrentRuns), self._sealer()
        opened = await self._opened(lambda opening: open_reply(opening, query, reply, home), sealer, fetch=fetch)
        return opened, {name for name, blob in sealer.blobs.items() if isinstance(blob, PayloadError)}

    async def outbox(self, request: OutboxRequest[R]) -> R:
        reply = await self.inner.outbox(request)
        if not isinstance(reply, OutboxClaim):
            return reply
        rows = await self._opened(lambda opening: [opening.outbox_row(row) for row in reply.rows])
        return cast("R", replace(reply, rows=rows))

    async def _opened(self, convert: Callable[[Open], R], sealer: Sealer | None = None, *, fetch: bool = True) -> R:
        """Open the values of a reply; again after reading the blobs that they refer to."""
        sealer = sealer or self._sealer()
        opened = convert(Open(sealer, self._forks))
        if sealer.needs and fetch and self.blob_store is not None:
            sealer.blobs = await self.blob_store.read([*sealer.needs])
            opened = convert(Open(sealer, self._forks))
        return opened

    async def _reply(self, convert: Callable[[Open], R]) -> R:
        """Open the values of the reply to a write.

        The write has happened, so an error here would make the caller repeat it. While blobs cannot be read, the
        reply is delayed, like the reply of a slow database.
        """
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._opened(convert)
            except StoreError as error:
                _log.warning("the reply of the database waits for the blob store: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)

    def _run(self, opening: Open, run: RunRecord) -> RunRecord:
        self._know(run)
        return opening.run(run)

    def _claim(self, opening: Open, claim: Claim) -> Claim:
        self._know(claim.run)
        page = opening.page(claim.mailbox_page, claim.run.pid, claim.run.run)
        return replace(claim, run=opening.run(replace(claim.run)), mailbox_page=page)

    def _created(self, opening: Open, created: Created) -> Created:
        run = self._run(opening, replace(created.run))
        return replace(created, run=run, events=opening.events(created.events, run.pid, run.run))

    def _sent(self, opening: Open, sent: Sent) -> Sent:
        run = None if sent.run is None else self._run(opening, replace(sent.run))
        claim = None if sent.claim is None else self._claim(opening, sent.claim)
        committed = None if sent.committed is None else self._committed(opening, sent.committed)
        return replace(sent, run=run, claim=claim, committed=committed)

    def _committed(self, opening: Open, committed: Committed) -> Committed:
        if not (committed.started or committed.sent or committed.claimed_children):
            return committed
        return replace(
            committed,
            started=[self._created(opening, created) for created in committed.started],
            sent=[self._sent(opening, sent) for sent in committed.sent],
            claimed_children=[self._created(opening, created) for created in committed.claimed_children],
        )

    # --- the instances of runs

    def _sealer(self) -> Sealer:
        return Sealer(self.settings, self._new_id)

    def _know(self, run: RunRecord) -> None:
        self._homes[run.run] = run.pid
        if run.origin is not None:
            self._forks.add(run.run)
        if len(self._homes) > _KNOWN_RUNS:
            forgotten, _ = self._homes.popitem(last=False)
            self._forks.discard(forgotten)

    async def _homes_of(self, runs: Iterable[int]) -> dict[int, str]:
        """The pids of runs. A run that was deleted has no pid, and no values either."""
        homes = {run: self._homes.get(run, "") for run in runs}
        unknown = [run for run, home in homes.items() if not home]
        if unknown:
            for record in await self.inner.read(RunsById(unknown)):
                self._know(record)
                homes[record.run] = record.pid
        return homes


async def _one(call: Any) -> list[Any]:
    return [await call]
