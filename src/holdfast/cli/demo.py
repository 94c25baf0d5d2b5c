"""``holdfast demo``: the script of the demo, its output and its checks. The workflow is in ``demo_order``.

This process never runs a step. It starts the order, reads its history from the file, and starts and kills the worker
processes that run the order. Executions are counted from the reports that the step functions write.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast import Handle, HoldfastError, StepRecord
from holdfast.cli.demo_dashboard import offer
from holdfast.cli.demo_order import LEASE_SECONDS, STEPS, Order, Shipped, order_app
from holdfast.cli.demo_process import WorkerProcess

_POLL_SECONDS = 0.05
_TIMEOUT_SECONDS = 120
_EXPECTED = Shipped(payment="paid 125", label="label for o-1", parcel="parcel with teapot", approved_by="ann")


class DemoError(HoldfastError):
    code = "DEMO_FAILED"


def demonstrate(file: Path | None, *, keep: bool) -> bool:
    """Run the demo; return True if every check passed."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-demo-")) / "demo.db" if file is None else file.absolute()
    check_fresh(path)
    demo = Demo(path, Console(highlight=False, soft_wrap=True))
    try:
        passed = asyncio.run(demo.run(keep=keep))
        offer(path, demo.console)
        return passed
    except KeyboardInterrupt:
        demo.print_line("demo", f"stopped. The history of the order so far is in {path}", "yellow")
        raise
    finally:
        if not keep:
            remove(path, directory=file is None)
        elif file is None and not path.exists():
            path.parent.rmdir()


def check_fresh(path: Path) -> None:
    """Refuse a file that exists: the demo writes only to a new file."""
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DemoError(f"{path} cannot be used: {error.strerror}. Name a file that does not exist yet") from None
    if start == b"SQLite format 3\0":
        raise DemoError(f"{path} exists already; it was left as it is. Name a file that does not exist yet")
    raise DemoError(f"{path} is not a database; it was left as it is. Name a file that does not exist yet")


def remove(path: Path, *, directory: bool) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    if directory:
        shutil.rmtree(path.parent, ignore_errors=True)


class Demo:
    """One run of the demo."""

    def __init__(self, path: Path, console: Console) -> None:
        self._path = path
        self.console = console
        self._started = time.monotonic()
        self._executions: Counter[str] = Counter()
        self._by_worker: dict[str, list[str]] = {}
        self._steps: dict[str, StepRecord] = {}
        self._running: set[str] = set()
        self._workers: list[WorkerProcess] = []
        self._order: Handle[Shipped] | None = None

    async def run(self, *, keep: bool) -> bool:
        self.console.print("[bold]Holdfast demo: an order survives the death of its worker[/bold]")
        app, workflow = order_app(f"sqlite:///{self._path}", lambda _step, _kind: None)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), app.connect():
                self.print_line("demo", f"new database {self._path}")
                self._order = await app.start(workflow, Order("o-1", "teapot", 125), id="order-o-1")
                with self._live_table():
                    recorded, output = await self._play(self._order)
        except TimeoutError:
            raise DemoError(
                f"the order did not complete within {_TIMEOUT_SECONDS} s; its file is {self._path}"
            ) from None
        finally:
            for worker in self._workers:
                await worker.kill()
        return self._conclude(recorded, output, keep=keep)

    # --- the script

    async def _play(self, order: Handle[Shipped]) -> tuple[set[str], Shipped]:
        """Run the script; return the steps recorded before the kill, and the output of the order."""
        self.print_line("demo", "order o-1 is started: it is in the file, and no worker runs it yet")
        first = await self._start_worker("worker 1")
        await self._until(lambda: "print label" in self._recorded() and "pack" in self._running)
        await asyncio.sleep(0.5)
        recorded = await self._kill(first, order)
        await self._start_worker("worker 2")
        self.print_line(
            "demo",
            f"worker 2 takes over when the lease of worker 1 expires ({LEASE_SECONDS} s here, 30 s by default)",
        )
        await self._until(lambda: "approval" in self._steps)
        self.print_line("demo", f"the order is {(await order.describe()).why}")
        await asyncio.sleep(0.5)
        self.print_line("demo", "sending the event: approval by ann", "magenta")
        await order.send_event("approval", {"by": "ann"})
        result = asyncio.ensure_future(order.result())
        await self._until(result.done)
        await self._update()
        await self._workers[-1].stop()
        return recorded, result.result()

    async def _start_worker(self, name: str) -> WorkerProcess:
        worker = WorkerProcess(name)
        self._workers.append(worker)
        await worker.start(f"sqlite:///{self._path}")
        return worker

    async def _kill(self, worker: WorkerProcess, order: Handle[Shipped]) -> set[str]:
        self.print_line("demo", f"kill -9 {worker.pid}: {worker.name} dies in the middle of pack", "bold red")
        os.kill(worker.pid, signal.SIGKILL)
        await worker.ended()
        self._read_reports()
        self._running.clear()
        recorded = {s.step_key for s in (await order.history()).steps if s.status == "completed"}
        self.print_line("demo", f"the file has the results of {listed(recorded)}, and no result of pack")
        return recorded

    # --- watching

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._update()
            await asyncio.sleep(_POLL_SECONDS)
            await self._check_alive()

    async def _check_alive(self) -> None:
        for worker in self._workers:
            if worker.failed:
                raise DemoError(f"{worker.name} ended unexpectedly with exit code {worker.returncode}")
        if self._order is not None and (await self._order.status()).status in ("paused", "errored"):
            raise DemoError(f"the order stopped: {(await self._order.describe()).why}")

    async def _update(self) -> None:
        """Print the workers' reports and the changes in the order's history."""
        self._read_reports()
        if self._order is None:
            return
        for step in (await self._order.history()).steps:
            before, self._steps[step.step_key] = self._steps.get(step.step_key), step
            if before is None or (before.status, before.attempts) != (step.status, step.attempts):
                self._show(step)

    def _show(self, step: StepRecord) -> None:
        if step.status == "completed":
            self._running.discard(step.step_key)
            self.print_line("file", f"{step.step_key}: recorded", "green")
        elif step.type == "sleep":
            self.print_line("file", f"{step.step_key}: sleeping; a sleep needs no process")
        elif step.type == "do" and step.error is not None:
            self._running.discard(step.step_key)
            self.print_line("file", f"{step.step_key}: attempt {step.attempts} failed ({step.error.message})", "yellow")

    def _recorded(self) -> set[str]:
        return {key for key, step in self._steps.items() if step.status == "completed"}

    def _read_reports(self) -> None:
        for worker in self._workers:
            while worker.reports:
                self._print_report(worker, worker.reports.popleft())

    def _print_report(self, worker: WorkerProcess, report: Sequence[str]) -> None:
        match report:
            case ["ready"]:
                self.print_line(worker.name, f"ready: process {worker.pid}")
            case ["begins", step]:
                self._executions[step] += 1
                self._by_worker.setdefault(worker.name, []).append(step)
                self._running.add(step)
                count = self._executions[step]
                self.print_line(
                    worker.name, f"{step}: running" + (f" (execution {count})" if count > 1 else ""), "cyan"
                )
            case ["fails", step]:
                self.print_line(worker.name, f"{step}: fails; it will be tried again in 1 s", "yellow")
            case ["warns", text]:
                self.print_line(worker.name, text, "yellow")
            case _:
                pass

    # --- output

    def print_line(self, source: str, text: str, style: str = "") -> None:
        line = Text(f"{time.monotonic() - self._started:5.1f}s  {source:<9} ", style="dim")
        line.append(text, style=f"not dim {style}")
        self.console.print(line)

    def _live_table(self) -> AbstractContextManager[object]:
        """A table of the order's steps below the lines, in a terminal only."""
        if not self.console.is_terminal:
            return nullcontext()
        return Live(console=self.console, get_renderable=self._table, refresh_per_second=10, transient=True)

    def _table(self) -> Table:
        table = Table("step", "state", "executions")
        for step in STEPS:
            table.add_row(step, self._state(step), self._count(step))
        return table

    def _state(self, step: str) -> str:
        if step in self._running:
            return "running"
        record = self._steps.get(step)
        if record is None:
            return ""
        return "done" if record.status == "completed" else "waiting"

    def _count(self, step: str) -> str:
        count = self._executions[step]
        return f"ran {count}×" if count else ""  # noqa: RUF001

    # --- conclusion

    def _conclude(self, recorded: set[str], output: Shipped, *, keep: bool) -> bool:
        first, second = self._workers
        repeated = recorded.intersection(self._by_worker.get(second.name, ()))
        checks = {
            f"{first.name} was killed (signal 9)": first.returncode == -signal.SIGKILL,
            f"steps finished before the kill ({listed(recorded)}) were not run again": bool(recorded) and not repeated,
            "pack, interrupted by the kill, was run again": "pack" in self._by_worker.get(second.name, ()),
            "the order is complete, with the expected result": output == _EXPECTED,
        }
        self.console.print()
        for step in (s for s in STEPS if self._executions[s]):
            self.console.print(f"  {step:<12} {self._count(step)}{self._reason(step)}")
        self.console.print()
        for check, passed in checks.items():
            style = "green" if passed else "bold red"
            self.console.print(Text(f"  {'yes' if passed else 'NO '}  {check}", style=style))
        self.console.print()
        self._explain(keep=keep)
        return all(checks.values())

    def _reason(self, step: str) -> str:
        reasons = {
            "charge": "  (the first attempt failed, and was retried)",
            "pack": "  (the first execution was interrupted by the kill)",
        }
        return reasons.get(step, "") if self._executions[step] > 1 else ""

    def _explain(self, *, keep: bool) -> None:
        self.console.print(
            "What happened: the first worker was killed while it packed the parcel. The result of every finished step\n"
            "was in the file, so the second worker continued the order: it ran the workflow code again from the top,\n"
            "used the recorded results instead of running those steps, and ran the remaining steps.\n"
            "An interrupted step runs again, so steps should be safe to repeat; a recorded step never runs again."
        )
        self.console.print(
            f"The order and its history are in {self._path}" if keep else "The file is removed at the end."
        )


def listed(steps: set[str]) -> str:
    return ", ".join(step for step in STEPS if step in steps)
