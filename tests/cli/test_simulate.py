"""``holdfast simulate`` on a user's workflow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.cli.main import main

from .running import holdfast

APP = """
import asyncio
from holdfast import Context, Holdfast

app, charged = Holdfast("sqlite://"), []


@app.step
async def charge(order: str) -> str:
    charged.append(order)
    return f"payment {order}"


@app.step
async def call() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


@app.workflow
async def fulfil(ctx: Context, order: dict[str, str]) -> str:
    payment = await charge(order["id"])
    approval = await ctx.wait_for_event("approval", type="approval")
    return f"{payment} approved by {approval.payload}"


@app.workflow
async def listener(ctx: Context) -> str:
    return await ctx.listen("go").receive()


@app.workflow
async def caller(ctx: Context) -> None:
    await call()


def fresh() -> list[str]:
    charged.clear()
    return charged
"""


class Result(NamedTuple):
    code: object
    out: str
    err: str


class Command:
    """The command, run in this process: a new process would import everything again."""

    def __init__(self, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.app = f"{module}:app"
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["holdfast", "simulate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(ended.value.code, *self._capsys.readouterr())


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    module = f"shop_of_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Command(module, monkeypatch, capsys)


ORDER = ("--params", '{"id": "o-1"}', "--event", 'approval="ann"')


def test_a_finding_is_reported_with_the_command_that_reproduces_it(simulate: Command) -> None:
    world = simulate.app.replace(":app", ":fresh")
    done = simulate(simulate.app, "fulfil", *ORDER, "--seeds", "12", "--world", world)

    assert (done.code, done.err) == (1, "")
    assert "1. A step that is not safe to run twice: 'charge' (seed " in done.out
    seed = done.out.partition("(seed ")[2].partition(")")[0]
    rerun = f"""Again: holdfast simulate {simulate.app} fulfil --params '{{"id": "o-1"}}' --event 'approval="ann"'"""
    assert f"{rerun} --world {world} --seed {seed}" in done.out

    repeated = simulate(simulate.app, "fulfil", *ORDER, "--seed", seed, "--world", world)
    assert repeated.code == 1
    assert "fulfil: 1 finding in 1 seed\n" in repeated.out


def test_a_simulation_without_findings_exits_with_0(tmp_path: Path, simulate: Command) -> None:
    """Runs as a process, unlike the other tests."""
    done = holdfast("simulate", simulate.app, "fulfil", *ORDER, "--seeds", "5", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fulfil: 5 seeds, nothing found\n")
    assert "5 returned 'payment o-1 approved by ann'" in done.stdout


def test_a_wait_that_nothing_ends_is_reported(simulate: Command) -> None:
    assert "A wait that can never end (without any fault)" in simulate(simulate.app, "listener").out
    assert simulate(simulate.app, "listener", "--event", 'go="on"', "--seeds", "2").code == 0


def test_a_step_that_does_io_is_refused(simulate: Command) -> None:
    done = simulate(simulate.app, "caller")

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("holdfast: Step 'call' of caller/simulated does I/O (create_connection)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shop:app"], "name a workflow of shop:app: holdfast simulate shop:app WORKFLOW"),
        ([], "name an app and a workflow: holdfast simulate MODULE:APP WORKFLOW"),
        (["--seeds", "10"], "name an app and a workflow: holdfast simulate MODULE:APP WORKFLOW"),
        (["shop:app", "fulfil", "--story"], "No such option: --story"),
        (["APP", "nothing"], "has no workflow 'nothing'; it has: caller, fulfil, listener"),
        (["nowhere:app", "fulfil"], "there is no module 'nowhere'"),
        (["APP", "fulfil", "--world", "nowhere:fresh"], "--world nowhere:fresh: there is no such function"),
        (["APP", "fulfil", "--event", "=1"], "an event has a type: TYPE or TYPE=JSON"),
        (["APP", "fulfil", "--event", "go={"], "not JSON: "),
    ],
)
def test_wrong_usage_exits_with_2(simulate: Command, arguments: list[str], message: str) -> None:
    done = simulate(*(argument.replace("APP", simulate.app) for argument in arguments))

    assert (done.code, done.out) == (2, "")
    assert message in done.err
