"""Durable copies of OpenAI agents, a session that is part of the run, and approvals.

``durable(agent)`` returns a copy of an agent, and of the agents that it hands off to. Inside a workflow, each of their
model requests, calls of function tools, requests to MCP servers and guardrails becomes a step: its result is recorded,
and after a crash the agent continues after it. Outside a workflow the copy is an ordinary agent.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import isawaitable
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from holdfast.core.durations import Duration
from holdfast.ext.decisions import decisions
from holdfast.ext.openai_agents.mcp import StepServer
from holdfast.ext.openai_agents.step import step
from holdfast.ext.options import StepOptions
from holdfast.extras import extra
from holdfast.kernel.step_info import step_info
from holdfast.workflow.context import current_context, in_workflow_code

with extra("openai-agents", "holdfast.ext.openai_agents"):
    from agents import (
        Agent,
        FunctionTool,
        GuardrailFunctionOutput,
        Handoff,
        InputGuardrail,
        ModelProvider,
        OutputGuardrail,
        RunResult,
        RunResultStreaming,
        RunState,
        ToolOutputFileContent,
        ToolOutputImage,
        ToolOutputText,
    )
    from agents.items import ModelResponse, TResponseInputItem, TResponseStreamEvent
    from agents.memory import SessionABC
    from agents.models.interface import Model
    from agents.models.multi_provider import MultiProvider
    from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest

__all__ = ["Approval", "HoldfastProvider", "RunSession", "StepOptions", "approvals", "durable"]

Deps = TypeVar("Deps")
OnEvent = Callable[[TResponseStreamEvent], Awaitable[None] | None]
"""Receives each event of a streamed model response, in the step of the request."""


def durable(
    agent: Agent[Deps],
    *,
    provider: ModelProvider | None = None,
    model: StepOptions | None = None,
    tool: StepOptions | None = None,
    guardrail: StepOptions | None = None,
    mcp: StepOptions | None = None,
    on_event: OnEvent | None = None,
    stream: str | None = None,
) -> Agent[Deps]:
    """A durable copy of an agent and of all agents that it hands off to.

    ``model``, ``tool``, ``guardrail`` and ``mcp`` are the options of the steps of that kind. ``provider`` finds models
    by name; the default is that of the framework. ``on_event`` receives the events of streamed responses while they
    arrive. ``stream`` names the durable stream of the run to which these events are written, as JSON: see
    ``Handle.stream``. The program connects the MCP servers of the agents before the app opens, and closes them.

    Example::

        support = durable(Agent(name="support", instructions="Help.", tools=[look_up]))

        @app.workflow
        async def answer(ctx: Context, question: str) -> str:
            return (await Runner.run(support, question)).final_output
    """
    steps = _Steps(
        model or StepOptions(),
        tool or StepOptions(),
        guardrail or StepOptions(),
        mcp or StepOptions(),
        on_event,
        stream,
    )
    return _Copies(provider or MultiProvider(), steps).of(agent)


class HoldfastProvider(ModelProvider):
    """A model provider whose models make each request a step, for ``RunConfig(model_provider=...)``.

    ``durable`` does this for a whole agent; this class is for runs whose models the run configuration names.
    """

    def __init__(
        self,
        provider: ModelProvider | None = None,
        *,
        model: StepOptions | None = None,
        on_event: OnEvent | None = None,
        stream: str | None = None,
    ) -> None:
        self._provider = provider or MultiProvider()
        self._options = model or StepOptions()
        self._on_event = on_event
        self._stream = stream

    def get_model(self, model_name: str | None) -> Model:
        find = partial(self._provider.get_model, model_name)
        return _StepModel(find, f"{model_name or 'default'}.model", self._options, self._on_event, self._stream)


class RunSession(SessionABC):
    """A session whose items are part of the run: a replay adds them again, so no database is needed.

    ``items`` are the first items, for example those of the run before ``continue_as_new``.
    """

    def __init__(self, items: list[TResponseInputItem] | None = None, *, session_id: str = "run") -> None:
        self.session_id = session_id
        self.items = [*(items or [])]

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        return self.items[:] if limit is None else self.items[max(len(self.items) - limit, 0) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        self.items.extend(items)

    async def pop_item(self) -> TResponseInputItem | None:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


@dataclass(frozen=True, slots=True)
class Approval:
    """The payload of the event that decides about a tool call."""

    call_id: str
    approved: bool
    message: str | None = None


async def approvals(
    result: RunResult | RunResultStreaming, *, event: str = "approval", timeout: Duration = "24 hours"
) -> RunState[Any, Any]:
    """Wait for a person's decision about each tool call that needs approval, and return the state to continue from.

    For each call the run waits for an event with the payload ``{"call_id": ..., "approved": true}``; a refusal may have
    a ``message`` for the model. Events may arrive in any order. Raises ``WaitForEventTimeoutError``.

    Example::

        result = await Runner.run(support, question)
        while result.interruptions:
            result = await Runner.run(support, await approvals(result))
    """
    state: RunState[Any, Any] = result.to_state()
    open_calls = {item.call_id: item for item in state.get_interruptions() if item.call_id is not None}
    async for decision in decisions(
        current_context(), open_calls, Approval, lambda approval: approval.call_id, event=event, timeout=timeout
    ):
        if decision.approved:
            state.approve(open_calls[decision.call_id])
        else:
            state.reject(open_calls[decision.call_id], rejection_message=decision.message)
    return state


@dataclass(frozen=True, slots=True)
class _Steps:
    """Options of the steps of each kind."""

    model: StepOptions
    tool: StepOptions
    guardrail: StepOptions
    mcp: StepOptions
    on_event: OnEvent | None
    stream: str | None


@dataclass(frozen=True, slots=True)
class _Copies:
    """Durable copies of agents. Agents may hand off to each other, so each agent is copied once."""

    provider: ModelProvider
    steps: _Steps
    made: dict[int, Agent[Any]] = field(default_factory=dict)

    def of(self, agent: Agent[Any]) -> Agent[Any]:
        if (known := self.made.get(id(agent))) is not None:
            return known
        made = self.made[id(agent)] = copy.copy(agent)
        made.model = _StepModel(
            partial(self._model, agent.model),
            f"{agent.name}.model",
            self.steps.model,
            self.steps.on_event,
            self.steps.stream,
        )
        made.tools = [self._tool(agent, tool) if isinstance(tool, FunctionTool) else tool for tool in agent.tools]
        made.mcp_servers = [StepServer(each, agent.name, self.steps.mcp) for each in agent.mcp_servers]
        made.handoffs = [self._handoff(each) if isinstance(each, Handoff) else self.of(each) for each in agent.handoffs]
        made.input_guardrails = [self._guardrail(agent, each) for each in agent.input_guardrails]
        made.output_guardrails = [self._guardrail(agent, each) for each in agent.output_guardrails]
        return made

    def _model(self, model: str | Model | None) -> Model:
        return model if isinstance(model, Model) else self.provider.get_model(model)

    def _tool(self, agent: Agent[Any], tool: FunctionTool) -> FunctionTool:
        inner = getattr(tool, "_agent_instance", None)
        if inner is not None and isinstance(inner.model, _StepModel):
            return tool  # of a durable agent: its own requests and tools are steps
        made = copy.copy(tool)
        made.on_invoke_tool = _StepTool(f"{agent.name}.{tool.name}", tool, self.steps.tool)
        return made

    def _handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        made = copy.copy(handoff)

        async def invoke(context: Any, arguments: str) -> Agent[Any]:
            return self.of(await handoff.on_invoke_handoff(context, arguments))

        made.on_invoke_handoff = invoke
        return made

    def _guardrail(self, agent: Agent[Any], guardrail: _Guardrail) -> _Guardrail:
        made = copy.copy(guardrail)
        made.name = guardrail.get_name()
        made.guardrail_function = _StepGuardrail(
            f"{agent.name}.{made.name}", guardrail.guardrail_function, self.steps.guardrail
        )
        return made


_Guardrail = TypeVar("_Guardrail", InputGuardrail[Any], OutputGuardrail[Any])


class _StepModel(Model):
    """A model whose requests are steps in workflow code. The model itself is made when it is first used.

    Not a dataclass: the framework identifies an agent by its fields, and copies the fields of a dataclass deeply. The
    client of a model cannot be copied.
    """

    __slots__ = ("find", "name", "on_event", "options", "stream")

    def __init__(
        self, find: Callable[[], Model], name: str, options: StepOptions, on_event: OnEvent | None, stream: str | None
    ) -> None:
        self.find = find
        self.name = name
        self.options = options
        self.on_event = on_event
        self.stream = stream

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        if not in_workflow_code():
            return await self.find().get_response(*args, **kwargs)

        async def request() -> Any:
            response = await self.find().get_response(*args, **kwargs)
            return _as_json(_responses(), response)

        return _responses().validate_python(await step(self.name, self.options, request))

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        if not in_workflow_code():
            async for event in self.find().stream_response(*args, **kwargs):
                yield event
            return

        async def request() -> Any:
            return [
                _as_json(_events(), event)
                async for event in self._received(self.find().stream_response(*args, **kwargs))
                if not event.type.endswith(".delta")
            ]

        for event in await step(self.name, self.options, request):
            yield _events().validate_python(event)

    async def _received(self, events: AsyncIterator[TResponseStreamEvent]) -> AsyncIterator[TResponseStreamEvent]:
        async for event in events:
            if self.on_event is not None and isawaitable(done := self.on_event(event)):
                await done
            if self.stream is not None:
                await step_info().stream(self.stream).write(_as_json(_events(), event))
            yield event

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self.find().get_retry_advice(request)


def _as_json(adapter: TypeAdapter[Any], value: Any) -> Any:
    """A value of the API's types with exactly the fields that it has, so that it can be decoded to an equal value."""
    return adapter.dump_python(value, mode="json", by_alias=True, exclude_unset=True, warnings=False)


@cache
def _responses() -> TypeAdapter[ModelResponse]:
    return TypeAdapter(ModelResponse)


@cache
def _events() -> TypeAdapter[TResponseStreamEvent]:
    return TypeAdapter(TResponseStreamEvent)


@dataclass(frozen=True, slots=True)
class _StepTool:
    """A call of a function tool that is a step in workflow code."""

    name: str
    tool: FunctionTool
    options: StepOptions

    async def __call__(self, context: Any, arguments: str) -> Any:
        if not in_workflow_code():
            return await self.tool.on_invoke_tool(context, arguments)

        async def call() -> Any:
            return _encode_output(await self.tool.on_invoke_tool(context, arguments))

        return _decode_output(await step(self.name, self.options, call))


_STRUCTURED = {kind.__name__: kind for kind in (ToolOutputText, ToolOutputImage, ToolOutputFileContent)}


def _encode_output(output: Any) -> Any:
    """The output of a tool as JSON: text, JSON or structured content. Other outputs are sent to the model as text."""
    if isinstance(output, list):
        return {"list": [_encode_output(each) for each in output]}
    if isinstance(output, BaseModel) and type(output).__name__ in _STRUCTURED:
        return {"kind": type(output).__name__, "value": output.model_dump(mode="json")}
    if output is None or isinstance(output, (str, int, float, dict)):
        return {"json": output}
    return {"json": str(output)}


def _decode_output(encoded: Any) -> Any:
    if "list" in encoded:
        return [_decode_output(each) for each in encoded["list"]]
    if "kind" in encoded:
        return _STRUCTURED[encoded["kind"]].model_validate(encoded["value"])
    return encoded["json"]


@dataclass(frozen=True, slots=True)
class _StepGuardrail:
    """A guardrail that is a step in workflow code."""

    name: str
    function: Callable[..., Any]
    options: StepOptions

    async def __call__(self, *args: Any) -> GuardrailFunctionOutput:
        if not in_workflow_code():
            return await self._check(args)

        async def check() -> Any:
            found = await self._check(args)
            return {"info": _encode_output(found.output_info), "tripwire": found.tripwire_triggered}

        recorded = await step(self.name, self.options, check)
        return GuardrailFunctionOutput(_decode_output(recorded["info"]), recorded["tripwire"])

    async def _check(self, args: tuple[Any, ...]) -> GuardrailFunctionOutput:
        found = self.function(*args)
        result: GuardrailFunctionOutput = await found if isawaitable(found) else found
        return result
