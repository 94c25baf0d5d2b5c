"""``holdfast instances stack``, ``export`` and ``holdfast diff``, against a server that allows debugging."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .live import LiveServer

APP = """
from holdfast import Context, Holdfast

app = Holdfast("sqlite:///shop.db")


@app.step
async def charge(order: str) -> str:
    return f"{order} paid"


@app.step
async def pack(order: str) -> str:
    return f"{order} packed"


@app.workflow
async def fulfil(ctx: Context, order: str) -> str:
    token = "secret-1"
    paid = await charge(order)
    if order.endswith("packed"):
        await pack(order)
    ctx.log.info(f"charged {order}")
    await ctx.wait_for_event("approval", type="approval")
    return paid + token
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = LiveServer(tmp_path_factory.mktemp("shop"))
    (server.folder / "shop.py").write_text(APP)
    server.start("--debug")
    for name in ("o-1", "o-1-packed"):
        server.create("fulfil", name, json.dumps(name))
        server.until("fulfil", name, "approval")
    yield server
    server.stop()


def test_a_stack_shows_frames_source_and_redacted_variables(live: LiveServer) -> None:
    done = live.run("instances", "stack", "-w", "fulfil", "-i", "o-1")
    assert done.returncode == 0, done.stderr
    assert "task main, waiting for event 'approval'" in done.stdout
    line = next(n for n, text in enumerate(APP.splitlines(), 1) if "wait_for_event" in text)
    assert f'shop.py", line {line}, in fulfil\n    await ctx.wait_for_event("approval", type="approval")' in done.stdout
    assert "      paid = 'o-1 paid'" in done.stdout
    assert "      token = <redacted>" in done.stdout
    assert "secret-1" not in done.stdout


def test_an_exported_run_replays(live: LiveServer) -> None:
    done = live.run("instances", "export", "-w", "fulfil", "-i", "o-1", "-o", str(live.folder / "run.json"))
    assert (done.returncode, "written to" in done.stdout) == (0, True)
    replayed = live.run("replay", "shop:app", "--file", str(live.folder / "run.json"), "--app-dir", str(live.folder))
    assert replayed.returncode == 0, replayed.stderr
    printed = live.run("instances", "export", "-w", "fulfil", "-i", "o-1", "-o", "-")
    assert json.loads(printed.stdout) == json.loads((live.folder / "run.json").read_text())


def test_a_diff_shows_input_steps_results_and_logs(live: LiveServer) -> None:
    done = live.run("diff", "fulfil/o-1", "fulfil/o-1-packed")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    for line in (
        "@@ params", '- "o-1"', '+ "o-1-packed"', "@@ steps", "  charge (do) completed", "+ pack (do) completed",
        "@@ result of 'charge'", '- "o-1 paid"', '+ "o-1-packed paid"', "@@ logs", "+ info charged o-1-packed",
    ):  # fmt: skip
        assert line in lines, done.stdout
    same = live.run("diff", "fulfil/o-1", "fulfil/o-1:0")
    assert (same.returncode, same.stdout) == (0, "fulfil/o-1 and fulfil/o-1:0 are the same\n")


def test_two_files_are_compared_without_a_server(tmp_path: Path, live: LiveServer) -> None:
    for name in ("o-1", "o-1-packed"):
        live.run("instances", "export", "-w", "fulfil", "-i", name, "-o", str(tmp_path / f"{name}.json"))
    files = [str(tmp_path / "o-1.json"), str(tmp_path / "o-1-packed.json")]
    done = live.run("instances", "diff", *files, "-b", "http://127.0.0.1:9/none")
    assert (done.returncode, "+ pack (do) completed" in done.stdout) == (1, True)
    for wrong in ("nothing", "fulfil/o-1:x", str(tmp_path)):
        assert live.run("diff", files[0], wrong).returncode == 2


def test_the_history_and_the_state_of_a_fork_name_its_origin(live: LiveServer) -> None:
    forked = live.run("instances", "fork", "fulfil/o-1", "--before", "charge", "--new-id", "f-1", "--reason", "a try")
    assert forked.returncode == 0, forked.stderr

    assert "forked from fulfil/o-1, run 0: a try" in live.run("instances", "history", "fulfil/f-1").stdout
    assert "origin     forked from fulfil/o-1, run 0: a try" in live.run("instances", "get", "fulfil/f-1").stdout
