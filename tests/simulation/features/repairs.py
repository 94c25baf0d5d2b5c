"""Requests of clients that repair, check and delete runs, and the details that are drawn for each."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from holdfast.core.model import Status
from holdfast.store.protocol import PrunePosition, PruneRuns
from simulation.programs import names
from simulation.programs.program import Program, resolved

if TYPE_CHECKING:
    from holdfast.client import Client

FORK = "fork"
_STEPS = ("step", "retries", "plain", "tx", "live", "broken", "poison")
_EDITED = "step"
_CHANGE = 1000
_PRUNED_MS = 200
"""Age of the runs that are pruned."""


async def retry(client: Client, workflow: str, id: str, _details: Any) -> object:
    return await client.repair.retry(workflow, id, "because it failed")


async def resolve(client: Client, workflow: str, id: str, details: Any) -> None:
    await client.repair.resolve(workflow, id, details, result=resolved(details))


async def fork(client: Client, workflow: str, id: str, details: Any) -> object:
    before, outputs = details
    return await client.repair.fork(workflow, id, before=before, fork_id=fork_id(id), outputs=dict(outputs))


async def delete(client: Client, workflow: str, id: str, _details: Any) -> None:
    await client.repair.delete(workflow, id)


async def prune(client: Client, workflow: str, _id: str, _details: Any) -> object:
    """Delete all runs of a workflow that ended a moment ago."""
    deleted = 0
    for status in Status:
        position: PrunePosition | None = PrunePosition()
        while status.terminal and position is not None:
            done = await client._store.maintain(PruneRuns(workflow, status, _PRUNED_MS, after=position, limit=5))
            deleted, position = deleted + done.runs, done.next
    return deleted


async def check_nothing(_client: Client, _workflow: str, _id: str, _details: Any) -> None:
    """The check of the open runs itself needs the code: see ``Node.check``."""


def fork_id(id: str) -> str:
    return f"{id}-{FORK}"


# --- details


def resolvable(draw: Random, workflow: str, params: Any) -> str | None:
    """The key of a step that may be resolved; None: the instance has none."""
    match workflow:
        case names.CHAIN:
            keys = [step for step, (kind, *_) in zip("ABCD", params, strict=True) if kind == "break"]
        case names.GRAPH:
            keys = ["total"] if params[3:] and params[3][0] == "total" else []
        case _ if workflow in names.PROGRAMS:
            keys = [part[1] for part in _own_parts(params) if part[0] in ("broken", "retries")]
        case _:
            keys = []
    return draw.choice(keys) if keys else None


def forkable(draw: Random, workflow: str, params: Any) -> list[Any] | None:
    """The step before which an instance is forked, and edited results of earlier steps; None: it has no steps."""
    match workflow:
        case names.CHAIN:
            return [draw.choice("BCD"), []]
        case names.GRAPH:
            return [draw.choice(["each", "total"]), []]
        case _ if workflow in names.PROGRAMS:
            return _forkable_program(draw, params)
        case _:
            return None


def _forkable_program(draw: Random, rounds: list[Program]) -> list[Any] | None:
    steps = [part for part in _own_parts(rounds) if part[0] in _STEPS]
    if not steps:
        return None
    before = draw.randrange(len(steps))
    edited = [part for part in steps[:before] if part[0] == _EDITED]
    outputs = [[part[1], part[2] + _CHANGE] for part in edited[:1]] if draw.random() < 0.5 else []
    return [steps[before][1], outputs]


def _own_parts(rounds: list[Program]) -> Iterator[Program]:
    """Parts that the instance executes itself, in order."""
    for program in rounds:
        yield from _flat(program)


def _flat(program: Program) -> Iterator[Program]:
    if program[0] in ("seq", "par", "race"):
        for part in program[1]:
            yield from _flat(part)
    else:
        yield program


def edited(program: Program, outputs: list[Any]) -> Program:
    """The program with the edited results in the place of those of its own steps."""
    values = dict(outputs)
    if program[0] in ("seq", "par", "race"):
        return [program[0], [edited(part, outputs) for part in program[1]]]
    if program[0] == _EDITED and program[1] in values:
        return [program[0], program[1], values[program[1]], *program[3:]]
    return program
