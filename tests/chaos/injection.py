"""Carries out a plan of faults on worker processes, on connections of workers and client, and on the server."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from .faults import SERVER, Fault, Kind
from .processes import Child
from .proxy import Cut, Proxy
from .server import Server, Stop

_SURE = 120.0
"""Seconds within which each worker commits something."""
_STOPS = {Kind.FAST: Stop.FAST, Kind.IMMEDIATE: Stop.IMMEDIATE, Kind.CRASH: Stop.KILL}


class Slot:
    """A worker's position: its proxy, and its processes, of which the last one may be running."""

    def __init__(self, number: int, proxy: Proxy, make: Callable[[Slot], Child]) -> None:
        self.number = number
        self.proxy = proxy
        self.lock = asyncio.Lock()
        self.children: list[Child] = []
        self._make = make

    @property
    def next_name(self) -> str:
        """The name of the process that is started next."""
        return f"worker-{self.number}-{len(self.children)}"

    @property
    def name(self) -> str:
        """The name of the last started process."""
        return f"worker-{self.number}-{len(self.children) - 1}"

    @property
    def worker(self) -> Child:
        return self.children[-1]

    def start(self) -> None:
        self.children.append(self._make(self))


class Injector:
    def __init__(self, server: Server, slots: Sequence[Slot], client: Proxy, on_fault: Callable[[], None]) -> None:
        """``on_fault`` is called before each fault: any fault may cost a run its worker, or let a lease expire."""
        self.injected: Counter[str] = Counter()
        self.last_fault_at = 0.0
        """The time at which the last fault ended."""
        self._server = server
        self._slots = slots
        self._client = client
        self._on_fault = on_fault
        self._cuts: list[tuple[Fault, Cut]] = []
        self._server_lock = asyncio.Lock()

    async def inject_all(self, faults: Sequence[Fault]) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0, began + fault.at - time.monotonic()))
                group.create_task(self._inject(fault))
        await self._cut_workers_now()
        self.last_fault_at = time.monotonic()
        for fault, cut in self._cuts:
            self.injected[fault.kind.value] += cut.fired is not None

    async def _cut_workers_now(self) -> None:
        """Let the cuts that still wait for a certain commit of a worker cut its next one, such as a heartbeat."""
        waiting = [cut for fault, cut in self._cuts if fault.victim < len(self._slots) and cut.fired is None]
        for cut in waiting:
            cut.match_next()
        async with asyncio.timeout(_SURE):
            for cut in waiting:
                await cut.done.wait()

    async def _inject(self, fault: Fault) -> None:
        self._on_fault()
        if fault.kind in SERVER:
            async with self._server_lock:
                await self._server.restart(_STOPS[fault.kind], fault.seconds)
            self.injected[fault.kind.value] += 1
        elif fault.kind in (Kind.CUT_BEFORE, Kind.CUT_AFTER):
            when = "before" if fault.kind is Kind.CUT_BEFORE else "after"
            cut = self._proxy_of(fault).cut(when, nth=fault.nth, matching=fault.matching)
            self._cuts.append((fault, cut))
        elif fault.kind is Kind.CUT_ALL:
            self._proxy_of(fault).cut_all()
            self.injected[fault.kind.value] += 1
        else:
            await self._inject_into_worker(self._slots[fault.victim], fault)
            self.injected[fault.kind.value] += 1

    def _proxy_of(self, fault: Fault) -> Proxy:
        return self._slots[fault.victim].proxy if fault.victim < len(self._slots) else self._client

    async def _inject_into_worker(self, slot: Slot, fault: Fault) -> None:
        """Inject a fault that lasts; a worker has at most one such fault at a time."""
        async with slot.lock:
            if fault.kind is Kind.KILL:
                await slot.worker.end(signal.SIGKILL)
                slot.start()
            elif fault.kind is Kind.STALL:
                await self._stall(slot, fault.seconds)
            elif fault.kind is Kind.BLACK_HOLE:
                async with slot.proxy.black_hole():
                    await asyncio.sleep(fault.seconds)
            else:
                with slot.proxy.slow(0.05):
                    await asyncio.sleep(fault.seconds)

    async def _stall(self, slot: Slot, seconds: float) -> None:
        """Stop a worker, if possible while a commit is on the wire: the worst moment to be stopped."""
        hold = slot.proxy.hold("holdfast_commit")
        with suppress(TimeoutError):
            await asyncio.wait_for(hold.reached.wait(), 1)
        slot.worker.send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        slot.worker.send(signal.SIGCONT)
        hold.release.set()


def kill_all(slots: Sequence[Slot]) -> None:
    for slot in slots:
        for child in slot.children:
            child.send(signal.SIGKILL)


async def open_proxy(folder: Path, server: Server, stack: AsyncExitStack) -> Proxy:
    """Open a proxy that is closed with the stack."""
    proxy = Proxy(folder, server.sockets)
    await proxy.open()
    stack.push_async_callback(proxy.close)
    return proxy
