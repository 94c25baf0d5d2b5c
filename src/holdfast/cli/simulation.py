"""``holdfast simulate``: the simulation of the engine, or of a user's workflow."""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from holdfast.cli.errors import WrongUsageError
from holdfast.cli.loading import load_app, split_target
from holdfast.cli.terminal_text import escape_controls
from holdfast.testing import SentEvent, SimulationError, SimulationReport, simulate
from holdfast.testing.simulation import command
from holdfast.testing.simulation.planted import BUGS
from holdfast.testing.users.report import SEED

LINES = "\n"
_DEFAULT_SEEDS = 200


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The options of the command line."""

    target: str | None
    workflow: str | None
    app_dir: Path
    params: str | None
    events: Sequence[str]
    world: str | None
    allow: Sequence[str]
    seeds: int | None
    first: int
    seed: int | None
    story: bool
    counts: bool
    bug: str | None
    only: str | None
    without: str | None
    processes: int

    def __post_init__(self) -> None:
        workflow_options = {
            "--params": self.params, "--event": self.events, "--world": self.world, "--allow": self.allow,
        }  # fmt: skip
        engine_options = {
            "--bug": self.bug, "--only": self.only, "--without": self.without, "--story": self.story,
            "--counts": self.counts, "--processes": self.processes > 1,
        }  # fmt: skip
        if self.target is not None and self.workflow is None:
            raise WrongUsageError(f"name a workflow of {self.target}: holdfast simulate {self.target} WORKFLOW")
        inapplicable = workflow_options if self.target is None else engine_options
        for name in [name for name, value in inapplicable.items() if value]:
            subject = "a workflow: give MODULE:APP WORKFLOW" if self.target is None else "the engine's simulation"
            raise WrongUsageError(f"{name} is for {subject}")


def run(options: SimulateOptions) -> int:
    """Run the simulation and print the report; return the exit code: 1 if there are findings."""
    if options.target is None:
        return _simulate_engine(options)
    try:
        report = asyncio.run(_simulate(options, options.target, options.workflow or ""))
    except SimulationError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return 1
    text = str(replace(report, again=_rerun_command(options)))
    sys.stdout.write(f"{escape_controls(text, keep=LINES)}\n")
    return 0 if report.ok else 1


def _rerun_command(options: SimulateOptions) -> str:
    """The command that runs one seed again."""
    arguments = [("--params", options.params), *(("--event", text) for text in options.events)]
    arguments += [("--world", options.world), *(("--allow", text) for text in options.allow)]
    if options.app_dir != Path():
        arguments.append(("--app-dir", str(options.app_dir)))
    words = ["holdfast", "simulate", options.target or "", options.workflow or ""]
    words += [word for name, value in arguments if value is not None for word in (name, value)]
    return f"{shlex.join(words)} --seed {SEED}"


def _simulate_engine(options: SimulateOptions) -> int:
    if options.bug is not None and options.bug not in BUGS:
        raise WrongUsageError(f"--bug {options.bug}: there is no such bug; the bugs are {', '.join(sorted(BUGS))}")
    return command.run(
        command.CommandOptions(
            "holdfast simulate",
            options.seeds or command.DEFAULT_SEEDS,
            options.first,
            options.seed,
            None if options.only is None else command.names(options.only),
            command.names(options.without or ""),
            options.story,
            options.bug,
            options.counts,
            options.processes,
        )
    )


async def _simulate(options: SimulateOptions, target: str, workflow: str) -> SimulationReport:
    app = load_app(target, options.app_dir)
    if workflow not in app.registry:
        known = ", ".join(sorted(definition.name for definition in app.registry)) or "none"
        raise WrongUsageError(f"{target} has no workflow {workflow!r}; it has: {known}")
    return await simulate(
        app,
        workflow,
        None if options.params is None else json.loads(options.params),
        seeds=options.seeds or _DEFAULT_SEEDS,
        first=options.first,
        seed=options.seed,
        events=[_event(text) for text in options.events],
        world=None if options.world is None else _callable(options.world),
        allow=[json.loads(text) for text in options.allow],
        fail=False,
    )


def _event(text: str) -> SentEvent:
    type_, _, payload = text.partition("=")
    return SentEvent(type_, json.loads(payload) if payload else None)


def _callable(target: str) -> Callable[[], Any]:
    name, attribute = split_target(target)
    try:
        value: Any = reduce(getattr, attribute.split("."), importlib.import_module(name))
    except (ModuleNotFoundError, AttributeError):
        raise WrongUsageError(f"--world {target}: there is no such function") from None
    if not callable(value):
        raise WrongUsageError(f"--world {target} is not a function but of type {type(value).__name__!r}")
    function: Callable[[], Any] = value
    return function
