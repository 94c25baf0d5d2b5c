"""Parts of a program that affect other runs, and the workflows that these parts start."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.app import Holdfast
from holdfast.errors import ChildError, EventInvalidError, InstanceNotFoundError, NonRetryableError, Rejected
from holdfast.workflow.context import Context
from holdfast.workflow.run_events import Exit, LinkDown, RunEvent
from simulation.programs.names import (
    CHAIN,
    CHAIN_WITH_LEASES,
    GRAPH,
    GRAPH_OF_RUNS,
    GRAPH_WITH_FAILING_ITEMS,
    LINKED,
    MAY_FAIL,
    PROGRAM,
    REPLIER,
    STARTER,
)
from simulation.programs.program import (
    DELIVERED,
    DOWN,
    FAILED,
    INVALID_PARCELS,
    LATE,
    NOT_FOUND,
    PARCEL,
    PEER_TOPIC,
    REFUSED,
    Program,
)
from simulation.programs.step_parts import PartKinds

_QUESTION = "question"
_REPLIER_SECONDS = 3
_REPLY_SECONDS = 4
_LINK_SECONDS = 60


def register_peers(app: Holdfast) -> None:
    """Register the workflows that programs start: ``REPLIER``, ``MAY_FAIL``, ``STARTER`` and ``LINKED``."""

    @app.workflow(name=REPLIER)
    async def replier(ctx: Context, refuse: bool) -> str:
        try:
            async with asyncio.timeout(_REPLIER_SECONDS):
                message = await ctx.listen(_QUESTION, messages=True).receive()
        except TimeoutError:
            return LATE
        if refuse:
            await message.reject(REFUSED)
            return REFUSED
        await message.reply(message.payload + 1)
        return DELIVERED

    @app.workflow(name=MAY_FAIL)
    async def may_fail(ctx: Context, params: list[Any]) -> Any:
        value, fails = params
        await ctx.sleep("live", 0.01)
        if fails:
            raise NonRetryableError("as it had to be")
        return value

    @app.workflow(name=STARTER)
    async def starter(ctx: Context, params: list[Any]) -> str:
        name = f"{ctx.info.instance_id}-orphan"
        return (await ctx.spawn(MAY_FAIL, params, id=name, parent_close="abandon")).pid

    @app.workflow(name=LINKED)
    async def linked(ctx: Context, partner: str) -> str:
        await ctx.spawn(MAY_FAIL, [0, True], id=partner, link=True)
        await asyncio.sleep(_LINK_SECONDS)
        return "the link did not end this run"


class RunParts:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._exits: dict[str, list[RunEvent]] = {}
        """Received exit and link-down events, by the pid of the run that ended."""
        self._exit_received = asyncio.Condition()
        self._listening: asyncio.Task[None] | None = None

    @property
    def kinds(self) -> PartKinds:
        return {
            "misfit": self._misfit,
            "child": self._child,
            "abandon": self._abandon,
            "tell": self._tell,
            "ask": self._ask,
            "link": self._link,
            "bound": self._bound,
            "monitor": self._monitor,
            "chain": self._chain,
            "leased": self._leased,
            "graph": self._graph,
            "broken_chain": self._chain,
            "broken_graph": self._broken_graph,
            "family": self._family,
            "sieve": self._sieve,
        }

    def stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def _misfit(self, _key: str, instance: str) -> str:
        for payload in INVALID_PARCELS:
            try:
                await self._ctx.send(f"{PROGRAM}/{instance}", PARCEL, payload)
            except EventInvalidError:
                continue
            return DELIVERED
        return REFUSED

    async def _child(self, key: str, program: Program) -> Any:
        return (await self._ctx.run(self._ctx.info.workflow, [[program], []], id=self._unique_id(key)))[0]

    async def _abandon(self, key: str, program: Program) -> None:
        workflow = self._ctx.info.workflow
        await self._ctx.spawn(workflow, [[program], []], id=self._unique_id(key), parent_close="abandon")

    async def _tell(self, key: str, instance: str) -> str:
        try:
            await self._ctx.send(f"{PROGRAM}/{instance}", PEER_TOPIC, self._unique_id(key))
        except InstanceNotFoundError:
            return NOT_FOUND
        return DELIVERED

    async def _ask(self, key: str, value: int, refuse: bool) -> Any:
        child = await self._ctx.spawn(REPLIER, refuse, id=self._unique_id(key))
        try:
            return await self._ctx.ask(child.pid, _QUESTION, value, timeout=_REPLY_SECONDS)
        except Rejected:
            return REFUSED
        except TimeoutError:
            return LATE
        except InstanceNotFoundError:
            return NOT_FOUND

    async def _link(self, key: str, value: Any, fails: bool) -> Any:
        self._start_listening()
        child = await self._ctx.spawn(MAY_FAIL, [value, fails], id=self._unique_id(key), link=True)
        exits = await self._wait_for_exits(child.pid, 1 + fails)
        if any(isinstance(event, LinkDown) for event in exits):
            return DOWN
        return next(event.result for event in exits if isinstance(event, Exit))

    async def _monitor(self, key: str, value: Any, fails: bool, ms: int) -> Any:
        self._start_listening()
        pid = await self._ctx.run(STARTER, [value, fails], id=self._unique_id(key))
        await self._ctx.sleep(key, ms / 1000)
        await self._ctx.monitor(pid)
        [event] = await self._wait_for_exits(pid, 1)
        return event.result if isinstance(event, Exit) and event.error is None else DOWN

    def _start_listening(self) -> None:
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._listen())

    async def _wait_for_exits(self, pid: str, n: int) -> list[RunEvent]:
        """Wait for n events about a run, or more: the end of an origin terminates the linked child of its fork."""
        async with self._exit_received:
            await self._exit_received.wait_for(lambda: len(self._exits.get(pid, ())) >= n)
        return self._exits[pid]

    async def _listen(self) -> None:
        async for event in self._ctx.events:
            if isinstance(event, Exit | LinkDown):
                async with self._exit_received:
                    self._exits.setdefault(event.pid, []).append(event)
                    self._exit_received.notify_all()

    async def _bound(self, key: str) -> Any:
        name = self._unique_id(key)
        try:
            return await self._ctx.run(LINKED, f"{name}-partner", id=name)
        except ChildError:
            return FAILED

    async def _chain(self, key: str, params: list[Any]) -> Any:
        return await self._ctx.run(CHAIN, params, id=self._unique_id(key))

    async def _leased(self, key: str, params: list[Any]) -> Any:
        return await self._ctx.run(CHAIN_WITH_LEASES, params, id=self._unique_id(key))

    async def _graph(self, key: str, n: int, fails: int) -> Any:
        name = self._unique_id(key)
        return await self._ctx.run(GRAPH, [name, n, fails], id=name)

    async def _broken_graph(self, key: str, n: int, broken: list[Any]) -> Any:
        name = self._unique_id(key)
        return await self._ctx.run(GRAPH, [name, n, 0, broken], id=name)

    async def _family(self, key: str, *params: Any) -> Any:
        return await self._run_or_fail(GRAPH_OF_RUNS, key, params)

    async def _sieve(self, key: str, *params: Any) -> Any:
        return await self._run_or_fail(GRAPH_WITH_FAILING_ITEMS, key, params)

    async def _run_or_fail(self, graph: str, key: str, params: tuple[Any, ...]) -> Any:
        name = self._unique_id(key)
        try:
            return await self._ctx.run(graph, [name, *params], id=name)
        except ChildError:
            return FAILED

    def _unique_id(self, key: str) -> str:
        return f"{self._ctx.info.instance_id}-{self._ctx.info.run_number}-{key}"
