"""Findings of ``holdfast doctor``: the result of the checks of a database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    severity: Severity
    check: str
    """The subject of the check, in one or two words."""
    text: str
    fix: str | None = None
    """A command or an instruction."""


class Waiting(NamedTuple):
    """Tasks of one kind that have been due for a while, and that no worker has claimed."""

    workflow: str
    queue: str
    pin: str
    tasks: int
    oldest_ms: int
    """The time for which the oldest of these tasks has been due."""


@dataclass(slots=True)
class Counts:
    """Counts of rows that need attention."""

    fence: str | None
    """The reason of a fence."""
    open_runs: int
    stored_runs: int
    parked_runs: int
    suspects: int
    """Runs whose last owners were lost in a row."""
    parked_outbox: int
    last_id: int
    waiting: Sequence[Waiting]


WAITING_MS = 60_000
"""Tasks that have been due for longer than this are reported."""
_NEAR_OVERFLOW = 2**62
_MANY_RUNS = 1_000_000
_LITTLE_SPACE, _LOW_SPACE = 100 * 1024**2, 1024**3


def examine_counts(counts: Counts, *, retention: bool | None) -> Iterator[Finding]:
    """Findings that do not depend on the kind of the database. ``retention``: True if the app deletes old runs."""
    if counts.fence is not None:
        yield Finding(Severity.ERROR, "fence", f"the database is fenced: {counts.fence}", "see `holdfast move --help`")
    yield Finding(Severity.OK, "runs", f"{counts.open_runs} open, about {counts.stored_runs} stored")
    if counts.stored_runs >= _MANY_RUNS and not retention:
        yield Finding(
            Severity.WARNING,
            "retention",
            f"about {counts.stored_runs} runs are stored, and finished runs are kept for ever",
            "set Holdfast(retention=...), or run `holdfast prune URL --older-than 90d`",
        )
    if counts.parked_runs:
        yield Finding(
            Severity.WARNING,
            "parked runs",
            f"{counts.parked_runs} runs are paused by the engine",
            "`holdfast instances list --status paused`, read `why`, then `holdfast instances resume`",
        )
    if counts.suspects:
        yield Finding(
            Severity.WARNING,
            "lost workers",
            f"{counts.suspects} runs lost their last workers in a row: a step may crash the process",
            "look for killed workers (out of memory?) in their logs",
        )
    if counts.parked_outbox:
        yield Finding(
            Severity.WARNING,
            "outbox",
            f"{counts.parked_outbox} outbound events are parked after too many failed deliveries",
            "fix the receiver, then `holdfast instances redeliver -w WORKFLOW -i ID`",
        )
    if counts.last_id > _NEAR_OVERFLOW:
        yield Finding(Severity.ERROR, "sequence", "the ids of runs are near their limit", "move to a new database")


def examine_waiting(
    waiting: Sequence[Waiting], queues: frozenset[str], versions: frozenset[str], known: frozenset[str] | None
) -> Iterator[Finding]:
    """Findings about tasks that no worker claims.

    ``queues`` and ``versions`` of the living workers; ``known``: the workflows of the app, if there is one.
    """
    for one in waiting:
        what = f"{one.tasks} tasks of {one.workflow} in queue {one.queue!r} are due"
        if not queues:
            yield Finding(Severity.ERROR, "workers", f"{what}, and no worker is alive", "holdfast worker MODULE:APP")
        elif known is not None and one.workflow not in known:
            yield Finding(
                Severity.ERROR, "code", f"{what}, and the app has no such workflow", "deploy a worker that has it"
            )
        elif one.queue not in queues:
            yield Finding(
                Severity.ERROR,
                "queues",
                f"{what}, and no living worker has this queue",
                f"holdfast worker MODULE:APP --queue {one.queue}",
            )
        elif one.pin and one.pin not in versions:
            yield Finding(
                Severity.ERROR,
                "versions",
                f"{what}, pinned to version {one.pin!r}, for which no worker is alive",
                f"start a worker of {one.pin}, or `holdfast instances move -w {one.workflow} --version {one.pin} "
                "--to VERSION`",
            )
        else:
            yield Finding(
                Severity.WARNING,
                "queue",
                f"{what} for {one.oldest_ms // 1000} s: the workers are busy, or none of them has the workflow",
                "start more workers; `holdfast stats` shows what they do",
            )


def examine_space(free: int, disk: str) -> Iterator[Finding]:
    """The finding about ``free`` bytes on a disk, if they are few."""
    if free < _LOW_SPACE:
        severity = Severity.ERROR if free < _LITTLE_SPACE else Severity.WARNING
        fix = "free space; `holdfast prune URL --older-than 30d` deletes old runs"
        yield Finding(severity, "disk", f"{free // 1024**2} MB are free on {disk}", fix)


class Doctor(Protocol):
    """The checks of one database."""

    async def open(self) -> Finding | None:
        """Open the database; returns why that is not possible."""
        ...

    async def close(self) -> None: ...

    async def settings(self, lease_ms: int) -> list[Finding]:
        """Findings about the server or the file. ``lease_ms``: the lease of the workers.

        If one of them is an error of the check ``rights``, the rows cannot be read, and there are no others.
        """
        ...

    async def counts(self) -> Counts: ...

    async def workers(self) -> list[tuple[tuple[str, ...], str | None]]:
        """Queues and version of each living worker."""
        ...
