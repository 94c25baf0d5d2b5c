"""Bulk actions of clients: stored jobs, and calls of ``app.bulk``, on instances that a filter selects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core import codec
from holdfast.core.filters import Filter
from simulation.features.parts import INSTANCES
from simulation.features.repairs import forkable
from simulation.programs import names
from simulation.programs.program import Program

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.bulk import BulkResult

SUFFIX = "-bulk"
"""The suffix of the ids of forks."""
BEGAN, ENDED = "bulk began", "bulk ended"
"""Actions of the audit records that say when a call of ``app.bulk`` began and returned, for the checks."""
UNHEARD = "note"
"""An event type for which no run waits."""
_WEIGHTS = {
    "pause": 1,
    "resume": 1,
    "cancel": 1,
    "terminate": 1,
    "restart": 2,
    "retry": 4,
    "fork": 2,
    "move": 1,
    "send_event": 2,
    "delete": 2,
}
_ON_ANY_RUN = ("pause", "resume", "move", "retry")
"""Actions that also select children and runs of schedules. The results of parents take no account of the others."""
_STATUSES = {
    "resume": ["paused"],
    "retry": ["errored"],
    "restart": ["errored", "complete", "waiting", "cancelled"],
    "fork": ["errored", "complete", "waiting"],
    "delete": ["complete", "errored", "cancelled", "terminated"],
}
"""The statuses that the filter of an action may select; others select open runs."""
_OPEN = ["waiting", "active"]
_RATES = (None, None, None, 4, 10, 40)


class BulkAction(NamedTuple):
    action: str
    arguments: Mapping[str, Any]
    filters: Sequence[Mapping[str, Any]]
    """The conditions of filters, which an instance must all match."""
    rate: float | None
    stored: bool
    """True for a job, which other processes continue; False for a call that ends with its process."""

    @property
    def event_type(self) -> str | None:
        """The type of the event that the action sends."""
        return self.arguments["type"] if self.action == "send_event" else None


class BulkCall(NamedTuple):
    """A call of ``app.bulk``, as its audit record describes it."""

    reason: str
    action: str
    arguments: Mapping[str, Any]
    filters: Sequence[Mapping[str, Any]]
    rate: float | None


def attributes(instance: str) -> Mapping[str, Any]:
    """The search attributes of an instance that a client starts. A fork has those of its origin; a child has none."""
    return {"root": 1, "group": sum(instance.encode()) % 2}


async def bulk(client: Client, workflow: str, id: str, details: BulkAction) -> None:
    """Store a job and begin it, or act and wait for the end. The reason, which is unique, names the action."""
    reason = f"bulk {client._requests.new_id()}"
    filters = [Filter(**conditions) for conditions in details.filters]
    arguments = {**details.arguments, "reason": reason}
    if details.stored:
        await client.bulk_jobs.create(details.action, filters, arguments, rate=details.rate)
        return
    call = BulkCall(reason, details.action, details.arguments, details.filters, details.rate)
    await client.control.note(workflow, id, BEGAN, _text(call))
    done: BulkResult = await client.bulk(filters, rate=details.rate)._run(details.action, arguments)
    await client.control.note(workflow, id, ENDED, _text([reason, done.done, done.failed, done.skipped]))


def _text(value: Any) -> str:
    return codec.encode(value, what="reason").decode()


def draw_bulk(draw: Random, workflow: str, params: Any) -> BulkAction | None:
    """An action, and a filter that selects some instances."""
    action = draw.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
    arguments = _arguments(draw, action, workflow, params)
    if arguments is None:
        return None
    filters: list[Mapping[str, Any]] = [{**_where(draw, workflow), **_state(draw, action)}]
    if action not in _ON_ANY_RUN:
        filters.append({"search": {"root": 1}})
    return BulkAction(action, arguments, filters, draw.choice(_RATES), draw.random() < 0.75)


def _arguments(draw: Random, action: str, workflow: str, params: Any) -> Mapping[str, Any] | None:
    match action:
        case "fork":
            cut = forkable(draw, workflow, params)
            return None if cut is None else {"before": cut[0], "suffix": SUFFIX}
        case "move":
            return {"version": names.OLD}  # in every seed a worker has this version
        case "send_event":
            type_, payload = draw.choice([*_waits(workflow, params), (UNHEARD, None)])
            return {"type": type_, "payload": payload}
        case _:
            return {}


def _waits(workflow: str, params: Any) -> Iterator[tuple[str, str]]:
    """The event types that an instance waits for, each with the payload that its result shows."""
    if workflow == names.CHAIN:
        yield from ((type_, type_) for kind, type_, _ in params if kind == "wait")
    if workflow in names.PROGRAMS:
        for part in _flat(["seq", params]):
            if part[0] == "event":
                yield part[2], part[1]


def _flat(program: Program) -> Iterator[Program]:
    if program[0] in ("seq", "par", "race"):
        for part in program[1]:
            yield from _flat(part)
    else:
        yield program


def _where(draw: Random, workflow: str) -> Mapping[str, Any]:
    choices: list[Mapping[str, Any]] = [
        {},
        {"workflow": workflow},
        {"id_prefix": "i"},
        {"id_prefix": f"i{draw.randint(1, INSTANCES)}"},
        {"id_prefix": "s"},
        {"search": {"group": draw.randrange(2)}},
    ]
    return draw.choice(choices)


def _state(draw: Random, action: str) -> Mapping[str, Any]:
    choices: list[Mapping[str, Any]] = [{}, {"status": draw.choice(_STATUSES.get(action, _OPEN))}]
    if action in ("retry", "delete", "fork"):
        choices.append({"error": "NonRetryableError"})
    return draw.choice(choices)
