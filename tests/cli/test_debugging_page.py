"""``docs/debugging.md``: every command of the page is run, in order, against runs with the described problems.

The page must show what the commands print; times, durations and positions in files may differ.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from .live import LiveServer
from .running import holdfast

PAGE = Path(__file__).parents[2] / "docs" / "debugging.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

APP = """
import asyncio
from pathlib import Path

from holdfast import Context, Holdfast, NonRetryableError, Retry, WorkerConfig

HERE = Path(__file__).parent
app = Holdfast(f"sqlite:///{HERE / 'shop.db'}", worker=WorkerConfig(poll="100 ms", drain="1 second"))


async def charge(order: str) -> str:  # not in a thread: a step that takes half a second records its start
    return f"payment for {order}"


def call_bank() -> None:
    raise ConnectionError("bank.example does not answer")


async def pack() -> None:
    await asyncio.sleep(600)


def decline() -> None:
    raise NonRetryableError("the card was declined", name="CardDeclined")


@app.workflow
async def fulfil(ctx: Context, order: str) -> str:
    ctx.log.info("order received", {"order": order})
    payment = await ctx.do("charge", charge, order)
    approval = await ctx.wait_for_event("approval", type="approval", timeout="24 hours")
    return f"{payment}, approved by {approval.payload['by']}"


@app.workflow
async def pay(ctx: Context) -> None:
    await ctx.do("call bank", call_bank, retry=Retry(limit=5, delay="10 minutes"))


@app.workflow
async def declined(ctx: Context) -> None:
    await ctx.do("charge", decline)


@app.workflow
async def packing(ctx: Context) -> None:
    await ctx.do("pack", pack)


@app.workflow
async def prices(ctx: Context) -> None:
    await ctx.do("feed", charge, "prices")
    await ctx.wait_for_event("go", type="go", timeout="24 hours")


@app.workflow
async def signature(ctx: Context) -> str:
    return await ctx.listen("sign").receive()


@app.workflow
async def purchase(ctx: Context) -> str:
    child = await ctx.spawn(signature, id="s-1", link=True)
    return await child.result()
"""
NEW_CODE = APP.replace('ctx.do("feed", charge, "prices")', 'ctx.wait_for_event("feed", type="feed")')
NEW_CODE += 'report = app.remote("report")'


def create_problems(live: LiveServer) -> None:
    """Create runs with all the described problems, and leave a server running."""
    (live.folder / "shop.py").write_text(APP)
    live.start()
    for workflow, instance, params in (
        ("fulfil", "order-1", '"order-1"'),
        ("fulfil", "order-2", '"order-2"'),
        ("pay", "order-1", "null"),
        ("declined", "order-3", "null"),
        ("prices", "monday", "null"),
        ("purchase", "p-1", "null"),
    ):
        live.create(workflow, instance, params)
    for workflow, instance, text in (
        ("fulfil", "order-1", "approval"),
        ("fulfil", "order-2", "approval"),
        ("pay", "order-1", "call bank"),
        ("declined", "order-3", "errored"),
        ("prices", "monday", "go"),
        ("purchase", "p-1", "waiting"),
        ("signature", "s-1", "waiting"),
    ):
        live.until(workflow, instance, text)
    live.ok("send-event", "-w", "fulfil", "-i", "order-1", "-t", "aproval", "--payload", '{"by": "ann"}')
    live.ok("pause", "-w", "fulfil", "-i", "order-2")
    live.until("fulfil", "order-2", "paused")
    live.stop()

    (live.folder / "shop.py").write_text(NEW_CODE)
    live.start("--debug")
    live.ok("send-event", "-w", "prices", "-i", "monday", "-t", "go")
    live.until("prices", "monday", "paused")
    live.create("packing", "order-4")
    live.until("packing", "order-4", "pack")
    live.create("report", "monday")


def commands(text: str) -> list[tuple[str, str]]:
    """Each command of the page, with the output shown below it."""
    parts = [part for block in BLOCK.findall(text) for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    return [(command, shown.strip()) for command, _, shown in (part.partition("\n") for part in parts)]


def masked(text: str) -> str:
    text = re.sub(r'File "[^"]*/shop.py", line \d+', 'File "shop.py", line N', text)
    text = re.sub(r"shop\.py:\d+", "shop.py:N", text)
    text = re.sub(r"\.\.\. \d+ frames? of holdfast \(.*\)", "... frames of holdfast", text)
    text = re.sub(r"^ +[~^]+\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})?", "TIME", text)
    text = re.sub(r"\((\d+ (days?|h|min|s|ms) )+so far\)", "(A WHILE so far)", text)
    return re.sub(r"(\(in|after)( \d+ (days?|h|min|s|ms))+", r"\1 A WHILE", text)


@pytest.mark.timeout(1200)
def test_the_page_shows_what_the_commands_print(tmp_path: Path) -> None:
    live = LiveServer(tmp_path)
    try:
        create_problems(live)
        for command, shown in commands(PAGE.read_text()):
            words = shlex.split(command)
            assert words[0] == "holdfast"
            done = holdfast(*words[1:], cwd=live.folder, HOLDFAST_BASE_URL=live.base)
            printed = (done.stdout + done.stderr).strip()
            assert masked(printed) == masked(shown), f"{command}\n{printed}"
    finally:
        live.stop()


def test_the_page_covers_every_common_failure() -> None:
    text = PAGE.read_text()

    for word in (
        "NON_DETERMINISTIC",
        "retry",
        "no workflow",
        "paused",
        "waiting for an event",
        "waiting for a worker",
        "waiting for child",
        "waiting for message",
        "linked to",
    ):
        assert word in text
