"""``docs/operations.md``: every command of the page is run, in order, against runs with the described problems."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import cli
from postgres_server import new_database

from .live import LiveServer
from .running import holdfast

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
INLINE = re.compile("`(holdfast [^`]*)`")
BLOCK = re.compile(r"^ *```console\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

APP = """
from pathlib import Path

from holdfast import Context, Holdfast, NonRetryableError, WorkerConfig

HERE = Path(__file__).parent
app = Holdfast(f"sqlite:///{HERE / 'shop.db'}", worker=WorkerConfig(poll="100 ms", drain="1 second", version="v1"))


def charge(order: str) -> str:
    if order == "p-1":
        raise NonRetryableError("the bank is closed")
    if order == "p-2":
        raise NonRetryableError("the card was stolen", name="CardStolen")
    return f"payment for {order}"


@app.workflow(pinned=True)
async def fulfil(ctx: Context, order: str) -> str:
    payment = await ctx.do("charge", charge, order)
    await ctx.wait_for_event("approval", type="approval", timeout="24 hours")
    return payment


@app.workflow
async def pay(ctx: Context, order: str) -> str:
    return await ctx.do("charge", charge, order)


@app.workflow
async def prices(ctx: Context) -> None:
    await ctx.do("feed", charge, "prices")
    await ctx.wait_for_event("go", type="go", timeout="24 hours")
"""
NEW_CODE = APP.replace('ctx.do("feed", charge, "prices")', 'ctx.wait_for_event("feed", type="feed")')


def create_problems(live: LiveServer) -> None:
    live.start()
    for workflow, instance, params, text in (
        ("fulfil", "o-1", '"o-1"', "approval"),
        ("fulfil", "o-2", '"o-2"', "approval"),
        ("pay", "p-1", '"p-1"', "errored"),
        ("pay", "p-2", '"p-2"', "errored"),
        ("prices", "monday", "null", "go"),
    ):
        live.create(workflow, instance, params)
        live.until(workflow, instance, text)
    live.stop()
    (live.folder / "shop.py").write_text(NEW_CODE)
    live.start()
    live.ok("send-event", "-w", "prices", "-i", "monday", "-t", "go")
    live.until("prices", "monday", "paused")


def commands() -> list[str]:
    lines = [line.strip() for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line]


@pytest.mark.timeout(1200)
def test_every_command_of_the_page_succeeds(tmp_path: Path) -> None:
    live = LiveServer(tmp_path, APP)
    failed = []
    target = new_database()
    try:
        create_problems(live)
        env = {"HOLDFAST_BASE_URL": live.base, "HOLDFAST_DATABASE_URL": f"sqlite:///{tmp_path / 'shop.db'}"}
        for command in commands():
            words = [word.replace("postgresql://app@db1/shop", target) for word in shlex.split(command)]
            if words[1] == "move":
                live.stop()
            done = holdfast(*words[1:], cwd=tmp_path, **env)
            if done.returncode != expected(words):
                failed.append(f"{command}: {done.returncode} {done.stdout} {done.stderr}")
    finally:
        live.stop()
    assert failed == []


def expected(words: list[str]) -> int:
    """The exit code: the check finds the run whose code was changed, and a fork differs from its origin."""
    return 1 if words[1] == "check" or words[1:3] == ["instances", "diff"] else 0


def test_commands_within_the_text_have_valid_options() -> None:
    """They are not run, because they do not end, or because their result depends on the program."""
    inline = [code for code in INLINE.findall(BLOCK.sub("", PAGE.read_text())) if " " in code]
    assert "holdfast worker shop:app --queue mail --processes 4" in inline

    for command in inline:
        done = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--help"])
        assert done.exit_code == 0, (command, done.output)


def test_the_page_covers_every_common_failure() -> None:
    text = PAGE.read_text()

    for title in ("A run failed", "A deploy broke runs", "The queue grows", "A worker died", "The disk is full"):
        assert f"## {title}\n" in text
    assert len(commands()) > 30
    assert all(command.startswith("holdfast ") for command in commands())
    assert not re.search(r"^ *```(sh|bash)$", text, re.MULTILINE), "a command that no test runs"
