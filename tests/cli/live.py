"""A real server: ``holdfast serve --worker`` on an app in a directory, and commands that use it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from .forking import ForkedCommand
from .running import clean_environment, holdfast

APP = '''
import asyncio
from dataclasses import dataclass
from pathlib import Path

from holdfast import Context, Holdfast, NonRetryableError, Retry, WorkerConfig

HERE = Path(__file__).parent
app = Holdfast(f"sqlite:///{HERE / 'shop.db'}", worker=WorkerConfig(poll="100 ms", drain="5 seconds"))
charged = []


@dataclass
class Order:
    id: str
    total: int


@app.step(retry=Retry(limit=2, delay="50 ms", backoff="constant"))
async def charge(order: Order) -> str:
    charged.append(order.id)
    if charged.count(order.id) == 1:
        raise ConnectionError("the bank did not answer")
    return f"payment-{order.id}"


@app.workflow
async def fulfil(ctx: Context, order: Order) -> dict:
    ctx.log.info("order received", {"total": order.total})
    payment = await charge(order)
    await ctx.sleep("cool off", "20 ms")
    approval = await ctx.wait_for_event("approval", type="approval", timeout="24 hours")
    return {"payment": payment, "by": approval.payload["by"]}


@app.workflow
async def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"


@app.workflow
async def refuses(ctx: Context) -> None:
    ctx.log.error("cannot [bold]go[/bold]\\nwith \\x1b[31mred", category="mood")
    raise NonRetryableError("the card is stolen", name="CardStolen")


@app.workflow
async def hopeless(ctx: Context) -> None:
    await ctx.do("call", dial, retry=Retry(limit=5, delay="1 hour"))


def dial() -> None:
    raise ConnectionError("no route to host")


@app.workflow
async def talks(ctx: Context, lines: int) -> None:
    """Log this number of lines, one after each event."""
    for number in range(lines):
        ctx.log.info(f"line {number}")
        await ctx.wait_for_event(f"go {number}", type="go")
    ctx.log.info("the last line")


@app.workflow
async def chatters(ctx: Context, lines: int) -> None:
    for number in range(lines):
        ctx.log.info(f"line {number}")


@app.workflow
async def renting(ctx: Context, customer: str) -> None:
    ctx.set_search(customer=customer, days=len(customer), tags=["car", "red"])
    ctx.set_memo(note=f"for {customer}")
    try:
        await ctx.sleep("rent", "30 days")
    finally:
        await ctx.do("release", str, "car")


@app.workflow
async def stubborn(ctx: Context) -> None:
    try:
        await ctx.sleep("sit", "30 days")
    finally:
        await ctx.sleep("sit on", "30 days")


@app.workflow
async def helper(ctx: Context) -> str:
    question = await ctx.listen("question", messages=True).receive()
    await question.reply("yes")
    return await ctx.listen("leave").receive()


@app.workflow
async def boss(ctx: Context) -> str:
    child = await ctx.spawn(helper, id=f"h-{ctx.info.instance_id}", link=True)
    await ctx.ask(child.pid, "question", {"may": "I"}, timeout="1 minute")
    await ctx.wait_for_event("go", type="go")
    await ctx.send(child.pid, "leave", "bye")
    return await child.result()
'''


class LiveServer:
    """A directory with an app, and the server that runs there."""

    def __init__(self, folder: Path, app: str = APP) -> None:
        self.folder = folder
        self.base = ""
        self._port = 0
        self._server: ForkedCommand | None = None
        (folder / "shop.py").write_text(app)

    def start(self, *options: str) -> None:
        """Start the server. A second start uses the same port."""
        out, log = self.folder / "serve.out", self.folder / "serve.log"
        out.write_text("")
        log.touch()
        arguments = ("serve", "shop:app", "--worker", "--port", str(self._port), *options)
        server = self._server = ForkedCommand(arguments, self.folder, clean_environment(), out, log)
        first = wait_for(out.read_text, lambda text: "\n" in text or server.poll() is not None)
        assert first.startswith("API "), (first, log.read_text())
        self.base = first.split()[1]
        self._port = int(re.findall(r":(\d+)/", self.base)[0])

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self._server is not None
        self._server.send_signal(number)
        return self._server.wait(60)

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, HOLDFAST_BASE_URL=self.base, **env)

    def ok(self, *arguments: str) -> str:
        """The output of a command of ``holdfast instances`` that must succeed."""
        done = self.run("instances", *arguments)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def create(self, workflow: str, id: str, params: str = "null") -> None:
        body = {"id": id, "params": json.loads(params)}
        httpx.post(f"{self.base}/{workflow}/instances", json=body, timeout=300).raise_for_status()

    def send(self, workflow: str, id: str, type: str) -> None:
        url = f"{self.base}/{workflow}/instances/{id}/events"
        httpx.post(url, json={"type": type}, timeout=300).raise_for_status()

    def get(self, workflow: str, id: str) -> str:
        return self.ok("get", "-w", workflow, "-i", id)

    def until(self, workflow: str, id: str, state: str) -> str:
        """The output of ``get`` once the instance has this status or this current step."""
        wait_for(lambda: " | ".join(self._states(workflow, id)), lambda states: state in states.split(" | "))
        return self.get(workflow, id)

    def _states(self, workflow: str, id: str) -> list[str]:
        instance = httpx.get(f"{self.base}/{workflow}/instances/{id}", timeout=300).raise_for_status().json()
        step = instance["meta"].get("currentStep", {})
        keys = [step["stepKey"]] if step.get("status") in ("pending", "waiting") else []
        return [instance["details"]["status"], *keys]


def wait_for(read: Callable[[], str], accept: Callable[[str], bool], seconds: float = 120) -> str:
    end = time.monotonic() + seconds
    while not accept(seen := read()):
        assert time.monotonic() < end, seen
        time.sleep(0.02)
    return seen
