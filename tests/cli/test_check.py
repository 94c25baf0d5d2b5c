"""``holdfast check`` and ``holdfast replay``, on the runs of a database and on an exported run.

Most commands run in this process: a new process that imports the engine and the app takes half a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from holdfast.cli import replay
from holdfast.cli.errors import WrongUsageError
from holdfast.cli.main import cli
from holdfast.errors import HoldfastError

from .running import HOLDFAST, clean_environment, holdfast

SHOP = """
from holdfast import Context, Holdfast

app = Holdfast("sqlite:///shop.db")


@app.step
async def charge(order: str) -> str:
    raise SystemExit("a step was called")


@app.workflow
async def fulfil(ctx: Context, order: str) -> str:
    ctx.log.info("order received")
    password = "hunter2"
    paid = await charge(order)
    await ctx.wait_for_event("approval", type="approval")
    return paid + password
"""
RENAMED = SHOP.replace("charge(", "charge_card(")
DECLARED = RENAMED.replace("@app.step\n", '@app.step(renamed_from="charge")\n')


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a database of open runs, one of them exported, and three releases of their code."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "checked_shop.py").write_text(SHOP)
    (folder / "checked_renamed.py").write_text(RENAMED)
    (folder / "checked_declared.py").write_text(DECLARED)
    asyncio.run(_create_runs(folder))
    return folder


async def _create_runs(folder: Path) -> None:
    (folder / "first.py").write_text(
        SHOP.replace('raise SystemExit("a step was called")', 'return f"{order} paid"').replace(
            "sqlite:///shop.db", f"sqlite:///{folder / 'shop.db'}"
        )
    )
    spec = importlib.util.spec_from_file_location("checked_first", folder / "first.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    async with module.app as app:
        for n in range(3):
            run = await app.start("fulfil", f"o-{n}", id=f"o-{n}")
            while (await run.status()).status != "waiting":
                await asyncio.sleep(0.01)
        await run.export(folder / "run.json")


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def in_process(*arguments: str, cwd: Path, typed: str | None = None) -> Done:
    """The exit code and the output of a command, as ``main`` would end it."""
    with contextlib.chdir(cwd):
        result = CliRunner().invoke(cli, [*arguments], input=typed)
    error = result.exception
    if isinstance(error, HoldfastError):
        return Done(2 if isinstance(error, WrongUsageError) else 1, result.stdout, f"holdfast: {error}")
    assert error is None or isinstance(error, SystemExit), error
    return Done(result.exit_code, result.stdout, result.stderr)


def test_runs_that_fit_are_counted_and_the_exit_code_is_0(shop: Path) -> None:
    done = in_process("check", "checked_shop:app", "--against", f"sqlite:///{shop / 'shop.db'}", cwd=shop)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["fulfil: 3 runs checked, 3 fit", "3 of 3 open runs fit the code"]


def test_a_renamed_step_is_reported_with_both_names_and_the_exit_code_is_1(shop: Path) -> None:
    done = holdfast("check", "checked_renamed:app", "--junit", "check.xml", "--processes", "2", cwd=shop)
    assert done.returncode == 1, done.stderr
    assert "3 would call a step again" in done.stdout
    assert "'charge'" in done.stdout
    assert "'charge_card'" in done.stdout
    [suite] = ElementTree.parse(shop / "check.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("4", "3")


def test_the_page_on_versioning_shows_what_the_command_prints(shop: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "versioning.md").read_text()
    [block] = re.findall(r"^```console\n\$ (.*?)^```$", page, re.MULTILINE | re.DOTALL)
    command, _, shown = block.partition("\n")
    for name in ("shop.db", "shop.db-wal"):
        if (shop / name).exists():
            shutil.copy(shop / name, tmp_path / name)
    (tmp_path / "shop.py").write_text(RENAMED)
    done = holdfast(*shlex.split(command)[1:], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, shown)


def test_a_declared_rename_fits(shop: Path) -> None:
    done = in_process("check", "checked_declared:app", "-w", "fulfil", "--sample", "2", cwd=shop)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 of 2 checked runs (a sample) fit the code")


def test_wrong_usage_and_an_unreadable_database_have_their_exit_codes(shop: Path) -> None:
    missing = in_process("check", "checked_shop:app", "--against", "sqlite:///none.db", cwd=shop)
    assert (missing.returncode, "none.db does not exist" in missing.stderr) == (1, True)
    for arguments in (["nothing:app"], ["checked_shop:app", "-w", "nothing"], ["checked_shop:app", "--sample", "0"]):
        assert in_process("check", *arguments, cwd=shop).returncode == 2
    assert not (shop / "none.db").exists()


def test_a_replay_shows_facts_stack_and_requests_at_a_position(shop: Path) -> None:
    done = in_process("replay", "checked_shop:app", "fulfil/o-1", "--until", "0", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert "position 0 of 1" in done.stdout
    assert 'charge (do) completed: "o-1 paid"' in done.stdout
    assert "in fulfil\n    paid = await charge(order)\n" in done.stdout
    assert "      password = <redacted>\n" in done.stdout
    assert "the code waits for step 'charge'" in done.stdout
    assert "log info  order received" in done.stdout


def test_a_replay_on_a_terminal_steps_forwards_and_backwards(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_on_terminal", lambda: True)
    typed = "n\n\np\n1\nwhat?\n99\nprevious\nq"

    done = in_process("replay", "checked_shop:app", "fulfil/o-1", "--until", "0", cwd=shop, typed=typed)

    assert done.returncode == 0, done.stderr
    assert re.findall(r"; position (\d) of 1", done.stdout) == ["0", "1", "1", "0", "1", "1", "0"]
    shown = [re.findall(r"the code waits for (\w+)", part) for part in re.split(r"; position \d of 1", done.stdout)[1:]]
    assert [waits[0] for waits in shown] == ["step", "event", "event", "step", "event", "event", "step"]


def test_a_file_replays_and_a_difference_is_shown(shop: Path) -> None:
    fits = in_process("replay", "checked_shop:app", "--file", "run.json", cwd=shop)
    assert (fits.returncode, "waits for event 'approval'" in fits.stdout) == (0, True)
    differs = in_process("replay", "checked_renamed:app", "--file", "run.json", cwd=shop)
    assert (differs.returncode, "does not fit the history" in differs.stdout) == (1, True)
    for arguments in (["--file", "none.json"], [], ["fulfil"], ["fulfil/o-1", "--file", "run.json"]):
        assert in_process("replay", "checked_shop:app", *arguments, cwd=shop).returncode == 2


def test_the_debugger_stops_where_the_code_continues_after_the_fact(shop: Path) -> None:
    done = subprocess.run(
        [str(HOLDFAST), "replay", "checked_shop:app", "--file", "run.json", "--until", "1", "--pdb"],
        input="p paid\np order\nw\nc\n", cwd=shop, env=clean_environment(), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '-> await ctx.wait_for_event("approval", type="approval")' in done.stdout
    assert "(Pdb) 'o-2 paid'\n" in done.stdout
    assert "(Pdb) 'o-2'\n" in done.stdout
    assert "the code waits for event 'approval'" in done.stdout
