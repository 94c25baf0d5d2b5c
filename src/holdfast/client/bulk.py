"""Bulk actions: one control request on every instance that matches a filter.

The instances are visited from the oldest to the newest, up to the newest instance at the beginning, each at most once:
an instance keeps its place in this order when it is retried or restarted. A position in the order is therefore enough
to resume an action that was interrupted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.client.instances import Instances, current_runs
from holdfast.core.checks import is_whole_number
from holdfast.core.durations import Duration
from holdfast.core.filters import CombinedFilter, Filter, combine
from holdfast.core.records import InstanceSummary
from holdfast.core.show import shown
from holdfast.errors import (
    AppClosedError,
    HoldfastError,
    InstanceExistsError,
    InstanceNotFoundError,
    InvalidOptionError,
    StateError,
    StoreError,
)
from holdfast.store.protocol import RunRecord, Store

if TYPE_CHECKING:
    from holdfast.client.control import Control
    from holdfast.client.events import EventSender
    from holdfast.client.repair import Repair

_log = logging.getLogger("holdfast.bulk")
ACTIONS = ("pause", "resume", "cancel", "terminate", "restart", "retry", "fork", "move", "send_event", "delete")
FORK_SUFFIX = "-fork"
_BATCH = 50
"""Number of instances that are read at a time."""
_PARALLEL = 10
_MAX_ERRORS = 100
MAX_RATE = 10_000

Act = Callable[[RunRecord], Awaitable[object]]
"""Applies an action to an instance. The record is that of the run which matched the filter."""


@dataclass(frozen=True, slots=True)
class BulkError:
    """An instance on which an action failed."""

    pid: str
    message: str


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of a bulk action, or its progress."""

    done: int = 0
    failed: int = 0
    """Instances on which the action raised an error that is not about their state."""
    skipped: int = 0
    """Instances whose state does not allow the action, or that were deleted.

    Of an action that was interrupted, also those that do not match the filter any more when it continues.
    """
    errors: tuple[BulkError, ...] = ()
    """At most a hundred of the failures."""

    def plus(self, other: BulkResult) -> BulkResult:
        errors = (self.errors + other.errors)[:_MAX_ERRORS]
        return BulkResult(self.done + other.done, self.failed + other.failed, self.skipped + other.skipped, errors)


Progress = Callable[[BulkResult], None]


class Visits:
    """The instances that match a filter, in batches."""

    def __init__(self, store: Store, filters: Sequence[Filter]) -> None:
        self._store = store
        self._filter: CombinedFilter | None = combine(filters)

    async def newest(self) -> int:
        """The newest matching instance; 0 if there is none."""
        if self._filter is None:
            return 0
        rows = await self._store.read(current_runs(self._filter, None, 1))
        return rows[0].instance if rows else 0

    async def batches(self, after: int, upto: int, size: int) -> AsyncIterator[list[RunRecord]]:
        """Batches of the current runs of the instances after one instance, up to another one."""
        while self._filter is not None and after < upto:
            rows = await self._store.read(current_runs(self._filter, after, size, ascending=True))
            batch = [row for row in rows if row.instance <= upto]
            if not batch:
                return
            yield batch
            if len(batch) < size:
                return
            after = batch[-1].instance

    async def count(self, upto: int) -> int:
        return sum([len(batch) async for batch in self.batches(0, upto, 500)])


class Bulk:
    """Control requests on every instance that matches a filter: ``app.bulk(Filter(status="errored")).retry()``.

    ``rate`` limits the number of instances per second, ``progress`` is called after each batch: up to fifty instances,
    or those of one second.
    """

    def __init__(
        self, actions: BulkActions, instances: Instances, store: Store, filters: Sequence[Filter], *,
        rate: float | None = None, progress: Progress | None = None,
    ) -> None:  # fmt: skip
        for one in filters:
            if not isinstance(one, Filter):
                raise InvalidOptionError(
                    f"a bulk action takes a Filter, such as Filter(status='errored'), not {shown(one)}"
                )
        self._actions = actions
        self._instances = instances
        self._visits = Visits(store, filters)
        self._rate = check_rate(rate)
        self._progress = progress

    async def count(self) -> int:
        """The number of matching instances."""
        return await self._visits.count(await self._visits.newest())

    async def sample(self, n: int = 10) -> list[InstanceSummary]:
        """The oldest matching instances, at most ``n``, as ``app.list`` shows them."""
        if not is_whole_number(n, 1, 1000):
            raise InvalidOptionError(f"sample takes a number from 1 to 1000, not {n!r}")
        upto = await self._visits.newest()
        async for batch in self._visits.batches(0, upto, n):
            return [self._instances.summary(row) for row in batch]
        return []

    async def pause(self, reason: str | None = None) -> BulkResult:
        return await self._run("pause", {"reason": reason})

    async def resume(self, reason: str | None = None) -> BulkResult:
        return await self._run("resume", {"reason": reason})

    async def cancel(self, reason: str | None = None, deadline: Duration | None = None) -> BulkResult:
        return await self._run("cancel", {"reason": reason, "deadline": deadline})

    async def terminate(self, reason: str | None = None) -> BulkResult:
        return await self._run("terminate", {"reason": reason})

    async def restart(self, reason: str | None = None) -> BulkResult:
        return await self._run("restart", {"reason": reason})

    async def retry(self, reason: str | None = None) -> BulkResult:
        return await self._run("retry", {"reason": reason})

    async def fork(
        self,
        before: str,
        *,
        suffix: str = FORK_SUFFIX,
        outputs: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> BulkResult:
        """Fork each matching instance before a step. The id of a fork is that of its origin and ``suffix``.

        An instance without this step, whose fork exists already, or that is itself such a fork, is skipped.
        """
        return await self._run("fork", {"before": before, "suffix": suffix, "outputs": outputs, "reason": reason})

    async def move(self, version: str, reason: str | None = None) -> BulkResult:
        """Move pinned instances to another release: workers of this version claim them from now on."""
        return await self._run("move", {"version": version, "reason": reason})

    async def send_event(
        self, type: str, payload: Any = None, *, id: str | None = None, reason: str | None = None
    ) -> BulkResult:
        return await self._run("send_event", {"type": type, "payload": payload, "id": id, "reason": reason})

    async def delete(self, reason: str | None = None) -> BulkResult:
        return await self._run("delete", {"reason": reason})

    async def _run(self, action: str, arguments: dict[str, Any]) -> BulkResult:
        act = self._actions.act(action, arguments)
        upto, result = await self._visits.newest(), BulkResult()
        async for batch in self._visits.batches(0, upto, batch_size(self._rate)):
            result = result.plus(await act_on(batch, act))
            if self._progress is not None:
                self._progress(result)
            if self._rate is not None and batch[-1].instance < upto:
                await asyncio.sleep(len(batch) / self._rate)
        return result


class BulkActions:
    """The actions by name."""

    def __init__(self, control: Control, repair: Repair, events: EventSender) -> None:
        self._control = control
        self._repair = repair
        self._events = events

    def act(self, action: str, arguments: dict[str, Any]) -> Act:
        """The function that applies an action to one instance; raises ``InvalidOptionError`` for an unknown one.

        An action that replaces or deletes a run does so only to the run that matched the filter: another request may
        have taken its place since.
        """
        control, repair, reason = self._control, self._repair, arguments.get("reason")
        if action not in ACTIONS:
            raise InvalidOptionError(f"action must be one of {', '.join(ACTIONS)}, not {action!r}")
        if action == "send_event":
            return self._sender(arguments)
        if action == "fork":
            return self._forker(arguments)
        if action == "move":
            return self._mover(arguments)
        if action == "cancel":
            deadline = arguments.get("deadline")
            deadline_ms = arguments.get("deadline_ms")
            seconds = deadline if deadline_ms is None else timedelta(milliseconds=deadline_ms)
            return lambda row: control.cancel(row.workflow, row.instance_id, reason, seconds)
        return {
            "pause": lambda row: control.pause(row.workflow, row.instance_id, reason),
            "resume": lambda row: control.resume(row.workflow, row.instance_id, reason),
            "terminate": lambda row: control.terminate(row.workflow, row.instance_id, reason),
            "restart": lambda row: repair.restart_run(row, reason),
            "retry": lambda row: repair.retry_run(row, reason),
            "delete": lambda row: repair.delete(row.workflow, row.instance_id, reason, run=row.run),
        }[action]

    def _forker(self, arguments: dict[str, Any]) -> Act:
        before, suffix = arguments.get("before"), arguments.get("suffix", FORK_SUFFIX)
        if not isinstance(before, str):
            raise InvalidOptionError("fork needs the step before which the new instances begin")
        if not isinstance(suffix, str) or not suffix:
            raise InvalidOptionError("the suffix of a fork's id must be text of at least one character")
        outputs, reason = arguments.get("outputs"), arguments.get("reason")
        return lambda row: self._repair.fork_as(row, suffix, before, outputs or {}, reason)

    def _mover(self, arguments: dict[str, Any]) -> Act:
        version = arguments.get("version")
        if not isinstance(version, str) or not version:
            raise InvalidOptionError("move needs the version of the workers to run on")
        reason = arguments.get("reason")
        return lambda row: self._control.move(row.workflow, row.instance_id, version, reason)

    def _sender(self, arguments: dict[str, Any]) -> Act:
        if not isinstance(arguments.get("type"), str):
            raise InvalidOptionError("send_event needs the type of the event")
        return lambda row: self._events.send(
            row.workflow, row.instance_id, arguments["type"], arguments.get("payload"), event_id=arguments.get("id"),
            reason=arguments.get("reason"),
        )  # fmt: skip


def check_rate(rate: object) -> float | None:
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= MAX_RATE:
        raise InvalidOptionError(f"rate must be a number of instances per second, up to {MAX_RATE}, not {rate!r}")
    return float(rate)


def batch_size(rate: float | None) -> int:
    """The number of instances that are visited together: at most those of one second."""
    return _BATCH if rate is None else max(1, min(_BATCH, int(rate)))


async def act_on(batch: Sequence[RunRecord], act: Act) -> BulkResult:
    """Apply an action to a batch. A database that fails ends the batch with its error, after the pending requests."""
    result = BulkResult()
    for start in range(0, len(batch), _PARALLEL):
        part = batch[start : start + _PARALLEL]
        for one in await asyncio.gather(*(_act(row, act) for row in part), return_exceptions=True):
            if isinstance(one, BaseException):
                raise one
            result = result.plus(one)
    return result


async def _act(row: RunRecord, act: Act) -> BulkResult:
    try:
        await act(row)
    except (StoreError, AppClosedError):
        raise
    except (StateError, InstanceNotFoundError, InstanceExistsError):
        return BulkResult(skipped=1)
    except HoldfastError as error:
        return _failed(row, str(error))
    except Exception as error:
        _log.exception("a bulk action failed on %s, and continues with the other instances", row.pid)
        return _failed(row, f"{type(error).__name__}: {error}")
    return BulkResult(done=1)


def _failed(row: RunRecord, message: str) -> BulkResult:
    return BulkResult(failed=1, errors=(BulkError(row.pid, message),))
