"""pydantic-ai: agents whose model requests and tool calls are durable steps of the workflow that runs the agent.

``HoldfastDurability`` is a capability of an agent. Inside a workflow, every model request, every call of a tool and
every request to an MCP server becomes a step: its result is recorded, and after a crash the agent continues after it.
Outside a workflow the agent is an ordinary agent.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

from holdfast.app import Holdfast
from holdfast.core.durations import Duration
from holdfast.core.retry import Retry
from holdfast.errors import NonRetryableError
from holdfast.ext.decisions import decisions
from holdfast.ext.options import StepOptions
from holdfast.extras import extra
from holdfast.kernel.attempt import current_attempt
from holdfast.kernel.step_info import step_info
from holdfast.workflow.context import Context, current_context, in_workflow_code

with extra("pydantic-ai", "holdfast.ext.pydantic_ai"):
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic_ai import durable_exec
    from pydantic_ai.agent import EventStreamHandler, ParallelExecutionMode
    from pydantic_ai.capabilities.abstract import WrapRunHandler
    from pydantic_ai.durable_exec import (
        JSON_CODEC,
        BaseDurabilityCapability,
        DurabilityEngineSpec,
        DurableOperationId,
        JournalCallableOperationBackend,
        RoleBasedOperationConfig,
        conversation_id_from_run_id,
    )
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.messages import AgentStreamEvent
    from pydantic_ai.models import Model
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied

__all__ = ["Approval", "HoldfastDurability", "StepOptions", "approvals"]

Deps = TypeVar("Deps")

_HAS_EXTERNAL_EVENTS = hasattr(durable_exec, "external_event_scope")
"""False for releases of pydantic-ai before 2.68."""
_TOOL_OPTIONS = "holdfast"
"""Key of a tool's metadata with the options of its step."""


class HoldfastDurability(BaseDurabilityCapability[Deps]):
    """Makes an agent durable inside workflows.

    ``app`` is the app whose workflows run the agent. It may be left out: the agent finds the run in which it is called.
    ``model``, ``tool``, ``mcp`` and ``event`` are the options of the steps of that kind; a tool may have its own in its
    metadata (``metadata={"holdfast": StepOptions(timeout="1 minute")}``, or False for a tool that runs in workflow
    code, without a step). ``models`` are further models that a run may name. ``event_stream_handler`` receives the
    events of a run; those of a model request inside the step of the request. ``stream`` names the durable stream of the
    run to which the events are written instead, as JSON, while they arrive: see ``Handle.stream``.

    Example::

        agent = Agent("openai:gpt-5", name="support", capabilities=[HoldfastDurability(app)])

        @app.workflow
        async def answer(ctx: Context, question: str) -> str:
            return (await agent.run(question)).output
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=JSON_CODEC,
        serialization_failure=lambda error: NonRetryableError(f"the result cannot be stored: {error}"),
        unsupported_runtime_toolset_kinds=frozenset({"mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_config_key=_TOOL_OPTIONS,
    )

    def __init__(
        self,
        app: Holdfast | None = None,
        *,
        model: StepOptions | None = None,
        tool: StepOptions | None = None,
        mcp: StepOptions | None = None,
        event: StepOptions | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[Deps] | None = None,
        stream: str | None = None,
        name: str | None = None,
        parallel_execution_mode: ParallelExecutionMode = "parallel_ordered_events",
    ) -> None:
        if stream is not None:
            if event_stream_handler is not None:
                raise UserError("stream= and event_stream_handler= cannot be combined")
            event_stream_handler = _StreamOfEvents(stream)
        if app is not None and not isinstance(app, Holdfast):
            raise UserError(f"HoldfastDurability(app) takes a Holdfast, not {type(app).__name__}")
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._options = _Options(
            model or StepOptions(), tool or StepOptions(), mcp or StepOptions(), event or StepOptions()
        )
        self._mode: ParallelExecutionMode = parallel_execution_mode

    @property
    def in_durable_context(self) -> bool:
        return in_workflow_code()

    def get_durable_operation_backend(self) -> _StepBackend:
        return _StepBackend(agent_name=self.name, default_model_id=self.default_model_id, config=self._options.config())

    def get_default_run_id(self) -> str | None:
        return str(current_context().uuid4()) if self.in_durable_context else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        return current_context().now if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        return current_context().now() if self.in_durable_context else None

    async def wrap_run(self, ctx: RunContext[Deps], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        if self.agent is None:
            return await handler()
        waits = self._waits() if self.in_durable_context else nullcontext()
        with self.agent.parallel_tool_call_execution_mode(self._mode), waits:
            return await super().wrap_run(ctx, handler=handler)

    def _waits(self) -> AbstractContextManager[None]:
        if not _HAS_EXTERNAL_EVENTS:
            return nullcontext()
        from holdfast.ext.external_events import durable_waits

        return durable_waits(self.name, self._options.event)


@dataclass(frozen=True, slots=True)
class _StreamOfEvents:
    """Writes the events of a run to a durable stream. Outside a step, as outside a workflow, they are only consumed."""

    name: str

    async def __call__(self, _: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            if current_attempt.get() is not None:
                await step_info().stream(self.name).write(_events().dump_python(event, mode="json"))


@cache
def _events() -> TypeAdapter[Any]:
    return TypeAdapter(AgentStreamEvent)


async def approvals(
    requests: DeferredToolRequests, *, event: str = "approval", timeout: Duration = "24 hours"
) -> DeferredToolResults:
    """Wait for a person's decision about each tool call that needs approval; to be called in a workflow.

    For each request the run waits for an event with the payload ``{"tool_call_id": ..., "approved": true}``; a refusal
    may have a ``message`` for the model. Events may arrive in any order. Raises ``WaitForEventTimeoutError``.

    Example::

        result = await agent.run(question)
        while isinstance(result.output, DeferredToolRequests):
            decided = await approvals(result.output)
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=decided)
    """
    calls = [call.tool_call_id for call in requests.approvals]
    decided: dict[str, bool | ToolApproved | ToolDenied] = {}
    async for decision in decisions(
        current_context(), calls, Approval, lambda approval: approval.tool_call_id, event=event, timeout=timeout
    ):
        decided[decision.tool_call_id] = decision.result()
    return DeferredToolResults(approvals=decided)


@dataclass(frozen=True, slots=True)
class Approval:
    """The payload of the event that decides about a tool call."""

    tool_call_id: str
    approved: bool
    message: str | None = None

    def result(self) -> ToolApproved | ToolDenied:
        if self.approved:
            return ToolApproved()
        return ToolDenied() if self.message is None else ToolDenied(self.message)


@dataclass(frozen=True, slots=True)
class _Options:
    model: StepOptions
    tool: StepOptions
    mcp: StepOptions
    event: StepOptions

    def config(self) -> RoleBasedOperationConfig[StepOptions]:
        return RoleBasedOperationConfig(
            model=self.model, event=self.event, capability=self.tool, tool=self.tool, resolve_tool=self._for_tool
        )

    def _for_tool(self, operation: DurableOperationId, tool: object | None, name: str) -> StepOptions | Literal[False]:
        declared = getattr(getattr(tool, "tool_def", None), "metadata", None) or {}
        options = declared.get(_TOOL_OPTIONS)
        if options is False:
            return False
        if options is None:
            return self.mcp if getattr(operation, "toolset_kind", None) == "mcp" else self.tool
        if not isinstance(options, StepOptions):
            raise UserError(
                f"metadata[{_TOOL_OPTIONS!r}] of tool {name!r} must be StepOptions or False, not {options!r}"
            )
        return options


class _StepBackend(JournalCallableOperationBackend[StepOptions]):
    """Executes operations of an agent as steps of the current run, under the names that pydantic-ai gives them.

    The second operation of the same name has the key ``name#2``, as repeated calls of a step have.
    """

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        context: Context = current_context()
        called = _Body(body)
        result = await context.call(name, called, retry=_retry_of(config), timeout=config.timeout)
        if _HAS_EXTERNAL_EVENTS:
            durable_exec.record_durable_unit(executed=called.called)  # spans of replayed work are not exported again
        return result


def _retry_of(options: StepOptions) -> Retry:
    """The retry policy of a step. Errors in the use of the framework are final: another attempt would not help."""
    retry = options.retry or Retry()
    return replace(retry, non_retryable=(*retry.non_retryable, UserError, PydanticUserError))


@dataclass(slots=True, eq=False)
class _Body:
    """The body of an operation as a step function. It takes no arguments, and its result is JSON already."""

    body: Callable[[], Awaitable[object]] = field(repr=False)
    called: bool = False
    """False after a replay, which returns the recorded result."""

    async def __call__(self) -> Any:
        self.called = True
        return await self.body()
