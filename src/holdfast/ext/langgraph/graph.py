"""``DurableGraph``: a compiled graph that runs in a workflow, with each node as a step.

The loop of LangGraph runs in workflow code. A node, with the conditional edges after it, runs in a step. Its outcome,
the writes to the channels of the graph, is the result of the step, so that a replay gives the loop the same writes.
The ids that LangGraph makes for checkpoints and tasks differ from replay to replay; nothing that is recorded has them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core.durations import Duration
from holdfast.core.retry import Retry
from holdfast.errors import EventInvalidError, NonRetryableError
from holdfast.ext.langgraph.outcome import Interruption, Outcome, OutcomeCodec
from holdfast.ext.langgraph.saver import configurable
from holdfast.ext.options import StepOptions
from holdfast.extras import extra
from holdfast.kernel.step_info import step_info
from holdfast.kernel.streams import Stream
from holdfast.workflow.context import Context, current_context

with extra("langgraph", "holdfast.ext.langgraph"):
    from langchain_core.runnables import Runnable, RunnableConfig
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.constants import START
    from langgraph.errors import GraphInterrupt, ParentCommand
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.pregel import Pregel
    from langgraph.pregel._read import PregelNode
    from langgraph.pregel._write import ChannelWrite
    from langgraph.types import Command, Interrupt, RetryPolicy

_SEND = "__pregel_send"
"""Key of the configuration with the method that appends to the writes of a task."""
_SCRATCHPAD = "__pregel_scratchpad"
_RUNTIME = "__pregel_runtime"
_NAMESPACE = "checkpoint_ns"
_LOST_ATTEMPTS_ONLY = Retry(non_retryable=(Exception,))
"""Attempts whose worker was lost are repeated; failures are left to the policy of LangGraph."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The payload of the event that answers an interrupt. ``node`` is needed if several nodes wait for an answer."""

    value: Any
    node: str | None = None


class DurableGraph:
    """Runs a compiled graph in workflows; every node is a step with the name of the node.

    ``step`` are the options of all steps, ``nodes`` those of single nodes. A node with a retry policy of LangGraph is
    retried by that policy, unless it has options here. Nodes of a subgraph have names such as ``research.search``.
    ``stream`` names the durable stream of the run to which nodes write with ``get_stream_writer()``: see
    ``Handle.stream``.

    Example::

        graph = DurableGraph(builder.compile(), step=StepOptions(timeout="2 minutes"))

        @app.workflow
        async def answer(ctx: Context, question: str) -> str:
            return (await graph.ainvoke({"question": question}))["answer"]
    """

    def __init__(
        self,
        graph: CompiledStateGraph[Any, Any, Any, Any],
        *,
        step: StepOptions | None = None,
        nodes: Mapping[str, StepOptions] | None = None,
        serde: SerializerProtocol | None = None,
        stream: str | None = None,
    ) -> None:
        if not isinstance(graph, CompiledStateGraph):
            raise TypeError(f"DurableGraph takes a compiled StateGraph, not {graph!r}")
        self._graph = graph
        self._options = _Options(step, nodes or {})
        self._serde = serde or JsonPlusSerializer()
        self._stream = stream

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: Any = None,
        event: str = "resume",
        timeout: Duration = "24 hours",
    ) -> Any:
        """The final state of the graph; to be called in workflow code.

        If nodes interrupt the graph, the run waits for one event of the type ``event`` for each of them, with the
        payload ``{"value": ...}``, and ``"node"`` to choose between several. Raises ``WaitForEventTimeoutError``.
        """
        run = _Execution(current_context(), self._options, OutcomeCodec(self._serde), self._stream)
        graph = run.durable(self._graph, "").copy({"checkpointer": InMemorySaver(serde=self._serde), "cache": None})
        settings: RunnableConfig = {**(config or {})}
        settings["configurable"] = {**settings.get("configurable", {}), "thread_id": "run"}
        asked = input
        while True:
            state = await graph.ainvoke(asked, settings, context=context, durability="exit")
            if not run.interrupts:
                return state
            asked = Command(resume=await run.answers(event, timeout))


@dataclass(frozen=True, slots=True)
class _Options:
    step: StepOptions | None
    nodes: Mapping[str, StepOptions]

    def of(self, name: str, node: PregelNode, graph: Pregel[Any, Any, Any, Any]) -> _NodeOptions:
        policies = tuple(node.retry_policy or graph.retry_policy or ())
        chosen = self.nodes.get(name)
        if chosen is None:
            chosen = self.step or StepOptions()
            if policies:
                chosen = StepOptions(_LOST_ATTEMPTS_ONLY, chosen.timeout)
        return _NodeOptions(chosen.retry, chosen.timeout, _retried_errors(policies))


@dataclass(frozen=True, slots=True)
class _NodeOptions:
    retry: Retry | None
    timeout: Duration | None
    raises: tuple[type[Exception], ...]
    """Errors that the workflow code gets as themselves, so that LangGraph finds the policy for them."""


def _retried_errors(policies: Sequence[RetryPolicy]) -> tuple[type[Exception], ...]:
    named = [policy.retry_on for policy in policies]
    listed = [each for on in named for each in (on if isinstance(on, Sequence) else (on,))]
    return tuple(each for each in listed if isinstance(each, type))


@dataclass(slots=True)
class _Execution:
    """One call of ``ainvoke``: the durable copy of the graph, and the interrupts that wait for an answer."""

    context: Context
    options: _Options
    codec: OutcomeCodec
    stream: str | None
    interrupts: dict[str, str] = field(default_factory=dict)
    """Name of the node by the id of its interrupt."""

    def durable(self, graph: Pregel[Any, Any, Any, Any], prefix: str) -> Pregel[Any, Any, Any, Any]:
        """A copy of a graph whose nodes, and those of its subgraphs, run in steps."""
        nodes = {
            name: self._durable_node(graph, node, prefix + name) if _runs_code(name, node) else node
            for name, node in graph.nodes.items()
        }
        return graph.copy({"nodes": nodes, "cache": None})

    def _durable_node(self, graph: Pregel[Any, Any, Any, Any], node: PregelNode, name: str) -> PregelNode:
        options = self.options.of(name, node, graph)
        without_cache = {"cache_policy": None, "timeout": node.timeout}
        if isinstance(node.bound, Pregel):
            edges = node.copy({"bound": None})
            writers = [_NodeStep(self, f"{name}.edges", _NodeBody(name, edges), options)]
            return node.copy({"bound": self.durable(node.bound, f"{name}."), "writers": writers, **without_cache})
        body = _NodeBody(name.rpartition(".")[2], node)
        return node.copy({"bound": _NodeStep(self, name, body, options), "writers": [], **without_cache})

    async def answers(self, event: str, timeout: Duration) -> dict[str, Any]:
        """The answer to each open interrupt, by its id."""
        waiting = _numbered(self.interrupts)
        self.interrupts = {}
        answers: dict[str, Any] = {}
        while waiting:
            name = f"{event} {self.context.uuid4().hex[:8]} for {', '.join(waiting)}"[:200]
            try:
                answer = (await self.context.wait_for_event(name, type=event, timeout=timeout, payload=Answer)).payload
            except EventInvalidError as error:
                self.context.log.warning(f"an event of the type {event!r} is ignored: {error}")
                continue
            node = next(iter(waiting)) if answer.node is None else answer.node
            if node in waiting:
                answers[waiting.pop(node)] = answer.value
            else:
                self.context.log.warning(f"an answer names the node {node!r}, which does not wait for one")
        return answers


def _numbered(interrupts: Mapping[str, str]) -> dict[str, str]:
    """Ids of interrupts by name; the second one of the same node has the name ``node#2``."""
    seen: Counter[str] = Counter()
    named = {}
    for interrupt_id, name in interrupts.items():
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name}#{seen[name]}"] = interrupt_id
    return named


def _runs_code(name: str, node: PregelNode) -> bool:
    """False for the start of a graph without conditional edges, which only copies the input to channels."""
    return name != START or not all(isinstance(writer, ChannelWrite) for writer in node.writers)


class _NodeStep(Runnable[Any, Any]):
    """A node, as the loop of LangGraph calls it, that runs in a step."""

    def __init__(self, execution: _Execution, name: str, body: _NodeBody, options: _NodeOptions) -> None:
        self.name = name
        self._execution = execution
        self._body = body
        self._options = options

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Follow a command of a subgraph. LangGraph calls this in workflow code; a replay follows the same command."""
        self._body.follow(input, _given(config))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        config = _given(config)
        body = _Attempt(self._body, input, config, self._execution.codec, self._execution.stream)
        options = self._options
        recorded = await self._execution.context.call(
            str(self.name), body, retry=options.retry, timeout=options.timeout, raises=options.raises
        )
        outcome = self._execution.codec.decode(recorded)
        writes = _writes(config)
        writes.clear()
        writes.extend(outcome.writes)
        if outcome.command is not None:
            raise ParentCommand(outcome.command)
        if outcome.interrupts:
            raise GraphInterrupt(tuple(self._interrupt(config, interrupt) for interrupt in outcome.interrupts))
        return None

    def _interrupt(self, config: RunnableConfig, interruption: Interruption) -> Interrupt[Any]:
        """The interrupt with the id that it has in this replay."""
        interrupt = Interrupt.from_ns(
            interruption.value, _place(config, interruption.answered), response_schema=interruption.response_schema
        )
        self._execution.interrupts[interrupt.id] = str(self.name)
        return interrupt


@dataclass(frozen=True, slots=True)
class _NodeBody:
    """The code of a node and the edges after it."""

    name: str
    """The name of the node in its graph."""
    node: PregelNode

    async def run(self, input: Any, config: RunnableConfig) -> None:
        if (body := self.node.node) is not None:
            await body.ainvoke(input, config)

    def follow(self, command: Command[Any], config: RunnableConfig) -> None:
        """Write the update and the target of a command of a graph inside this node."""
        for writer in self.node.flat_writers:
            writer.invoke(command, config)

    def is_target(self, command: Command[Any], config: RunnableConfig) -> bool:
        namespace = str(configurable(config)[_NAMESPACE])
        return command.graph in (namespace, _without_ids(namespace), self.name)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The function of a step: one attempt of a node. Interrupts and commands are outcomes, not failures."""

    body: _NodeBody
    input: Any
    config: RunnableConfig
    codec: OutcomeCodec
    stream: str | None

    async def __call__(self) -> Any:
        writes = _writes(self.config)
        writes.clear()  # an attempt that failed may have written
        config = self.config if self.stream is None else _with_writer(self.config, self.stream)
        try:
            await self.body.run(self.input, config)
        except GraphInterrupt as interrupt:
            return self.codec.encode(Outcome([*writes], self._interruptions(interrupt)))
        except ParentCommand as error:
            command: Command[Any] = error.args[0]
            if not self.body.is_target(command, self.config):
                outer = replace(command, graph=_without_ids(command.graph or ""))
                return self.codec.encode(Outcome([*writes], command=outer))
            self.body.follow(command, self.config)
        return self.codec.encode(Outcome([*writes]))

    def _interruptions(self, error: GraphInterrupt) -> list[Interruption]:
        answered = len(configurable(self.config)[_SCRATCHPAD].resume)
        own = Interrupt.from_ns(None, _place(self.config, answered)).id
        if any(interrupt.id != own for interrupt in error.args[0]):
            raise NonRetryableError(
                "a graph that a node calls was interrupted; add this graph as a node, so that its nodes are steps"
            )
        return [Interruption(each.value, answered, each.response_schema) for each in error.args[0]]


def _with_writer(config: RunnableConfig, stream: str) -> RunnableConfig:
    """The configuration of a node whose ``get_stream_writer()`` writes to a durable stream."""
    values = configurable(config)
    runtime: Any = values[_RUNTIME]
    writer = _StreamWriter(step_info().stream(stream), asyncio.get_running_loop())
    return {**config, "configurable": {**values, _RUNTIME: runtime.override(stream_writer=writer)}}


@dataclass(frozen=True, slots=True)
class _StreamWriter:
    """Writes an item from the event loop, or from the thread of a plain node, which waits for room in the buffer."""

    stream: Stream
    loop: asyncio.AbstractEventLoop

    def __call__(self, value: Any) -> None:
        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001  (get_running_loop raises in a thread)
            self.stream.write(value)
        else:
            asyncio.run_coroutine_threadsafe(self._write(value), self.loop).result()

    async def _write(self, value: Any) -> None:
        await self.stream.write(value)


def _writes(config: RunnableConfig) -> deque[tuple[str, Any]]:
    """The writes of the task that a configuration belongs to."""
    writes: deque[tuple[str, Any]] = configurable(config)[_SEND].__self__
    return writes


def _given(config: RunnableConfig | None) -> RunnableConfig:
    if config is None:
        raise RuntimeError("a node of a durable graph runs in its graph only: await DurableGraph.ainvoke(...)")
    return config


def _place(config: RunnableConfig, answered: int) -> str:
    """The text of which LangGraph makes the id of an interrupt: the task, and its number of answered interrupts."""
    namespace = str(configurable(config)[_NAMESPACE])
    return f"{namespace}|{answered}" if answered else namespace


def _without_ids(namespace: str) -> str:
    """A namespace such as ``outer:id|inner:id`` without the ids of tasks, which are different in each replay."""
    return "|".join(part.partition(":")[0] for part in namespace.split("|") if not part.isdigit())
