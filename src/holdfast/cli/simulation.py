"""``holdfast simulate``: the simulation of a user's workflow."""

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
from holdfast.testing.simulation.report import SEED

NEWLINE = "\n"


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
    seeds: int
    first: int
    seed: int | None


def run(options: SimulateOptions) -> int:
    """Run the simulation and print the report; return the exit code: 1 if there are findings."""
    target, workflow = _app_and_workflow(options)
    try:
        report = asyncio.run(_simulate(options, target, workflow))
    except SimulationError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return 1
    text = str(replace(report, again=_rerun_command(options)))
    sys.stdout.write(f"{escape_controls(text, keep=NEWLINE)}\n")
    return 0 if report.ok else 1


def _app_and_workflow(options: SimulateOptions) -> tuple[str, str]:
    if options.target is None:
        raise WrongUsageError("name an app and a workflow: holdfast simulate MODULE:APP WORKFLOW")
    if options.workflow is None:
        raise WrongUsageError(f"name a workflow of {options.target}: holdfast simulate {options.target} WORKFLOW")
    return options.target, options.workflow


def _rerun_command(options: SimulateOptions) -> str:
    """The command that runs one seed again."""
    arguments = [("--params", options.params), *(("--event", text) for text in options.events)]
    arguments += [("--world", options.world), *(("--allow", text) for text in options.allow)]
    if options.app_dir != Path():
        arguments.append(("--app-dir", str(options.app_dir)))
    words = ["holdfast", "simulate", options.target or "", options.workflow or ""]
    words += [word for name, value in arguments if value is not None for word in (name, value)]
    return f"{shlex.join(words)} --seed {SEED}"


async def _simulate(options: SimulateOptions, target: str, workflow: str) -> SimulationReport:
    app = load_app(target, options.app_dir)
    if workflow not in app.registry:
        known = ", ".join(sorted(definition.name for definition in app.registry)) or "none"
        raise WrongUsageError(f"{target} has no workflow {workflow!r}; it has: {known}")
    return await simulate(
        app,
        workflow,
        None if options.params is None else json.loads(options.params),
        seeds=options.seeds,
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
