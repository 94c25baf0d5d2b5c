"""The workflow that runs a program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.app import Holdfast
from holdfast.workflow.context import Context
from simulation.features.table import FEATURE_OF_KIND
from simulation.programs.external_system import ExternalSystem
from simulation.programs.names import BUFFERED_PROGRAM, PROGRAM
from simulation.programs.program import PARCEL, Program
from simulation.programs.renamed_step import register_renamed_step
from simulation.programs.run_parts import RunParts
from simulation.programs.step_parts import PartKinds, StepParts
from simulation.programs.wait_parts import WaitParts


@dataclass(frozen=True, slots=True)
class Parcel:
    """The payload of the event type that the workflow declares."""

    number: int
    label: str


def register_programs(app: Holdfast, external: ExternalSystem, version: int) -> None:
    """Register the workflows that run programs.

    Version 2 of the code has one more step at the end of each program, and its first step has another name.
    """
    renamed_step = register_renamed_step(app, external.work, version)

    async def program(ctx: Context, params: list[Any]) -> list[Any]:
        rounds, results = params
        steps, runs = StepParts(ctx, external, version), RunParts(ctx)
        reached = partial(external.reached, ctx.info.instance_id)
        interpreter = _Interpreter({**steps.kinds, **WaitParts(ctx).kinds, **runs.kinds}, reached)
        reached("renamed_step", *external.common)
        reached("persist_task" if ctx.info.workflow == BUFFERED_PROGRAM else "persist_step")
        await renamed_step()
        results = [*results, await interpreter.run(rounds[0])]
        runs.stop_listening()
        if version > 1:
            reached("changed_code")
            await steps.step("farewell", 0, 0, 0)
        if len(rounds) > 1:
            reached("continue_as_new")
            raise ctx.continue_as_new([rounds[1:], results])
        return results

    app.workflow(name=PROGRAM, trap_links=True, events={PARCEL: Parcel})(program)
    app.workflow(name=BUFFERED_PROGRAM, trap_links=True, events={PARCEL: Parcel}, persist="task")(program)


class _Interpreter:
    """Executes programs. ``kinds`` are the parts without other parts. ``reached`` is called with the features used."""

    def __init__(self, kinds: PartKinds, reached: Callable[[str], None]) -> None:
        self._reached = reached
        self._kinds: PartKinds = {**kinds, "seq": self._seq, "par": self._par, "race": self._race}

    async def run(self, program: Program) -> Any:
        kind, *parts = program
        if kind in FEATURE_OF_KIND:
            self._reached(FEATURE_OF_KIND[kind])
        return await self._kinds[kind](*parts)

    async def _seq(self, programs: list[Program]) -> list[Any]:
        return [await self.run(program) for program in programs]

    async def _par(self, programs: list[Program]) -> list[Any]:
        async with asyncio.TaskGroup() as group:  # when cancelled, the group waits until all sagas are undone
            tasks = [group.create_task(self.run(program)) for program in programs]
        return [task.result() for task in tasks]

    async def _race(self, programs: list[Program]) -> list[Any]:
        tasks = [asyncio.ensure_future(self.run(program)) for program in programs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = next(n for n, task in enumerate(tasks) if task.done())
            return [winner, tasks[winner].result()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
