"""MCP servers of OpenAI agents: in workflow code every request to a server is a step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from holdfast.ext.openai_agents.step import step
from holdfast.ext.options import StepOptions
from holdfast.extras import extra
from holdfast.workflow.context import in_workflow_code

with extra("openai-agents", "holdfast.ext.openai_agents"):
    from agents import AgentBase, RunContextWrapper
    from agents.mcp import MCPServer
    from mcp.types import (
        CallToolResult,
        GetPromptResult,
        ListPromptsResult,
        ListResourcesResult,
        ListResourceTemplatesResult,
        ReadResourceResult,
        Tool,
    )

__all__ = ["StepServer"]

Answer = TypeVar("Answer", bound=BaseModel)


class StepServer(MCPServer):
    """An MCP server whose requests are steps in workflow code, named ``{agent}.{server}.{tool or request}``.

    The program connects the wrapped server and closes it; ``connect`` and ``cleanup`` are passed on. The policies of
    the server (approval, errors, filters, guardrails) hold for the copy too.
    """

    def __init__(self, server: MCPServer, agent: str, options: StepOptions) -> None:
        super().__init__(
            use_structured_content=server.use_structured_content,
            tool_meta_resolver=server.tool_meta_resolver,
            custom_data_extractor=server.custom_data_extractor,
            tool_input_guardrails=server.tool_input_guardrails,
            tool_output_guardrails=server.tool_output_guardrails,
        )
        # Both are stored in a normalized form, which the constructor does not take.
        self._needs_approval_policy = server._needs_approval_policy  # noqa: SLF001
        self._failure_error_function = server._failure_error_function  # noqa: SLF001
        self._server = server
        self._options = options
        # The name of a server may be its URL, from which the framework removes credentials for its errors.
        self._prefix = f"{agent}.{server._error_name}"  # noqa: SLF001

    @property
    def name(self) -> str:
        return self._server.name

    @property
    def cached_tools(self) -> list[Tool] | None:
        return self._server.cached_tools

    async def connect(self) -> None:
        await self._server.connect()  # type: ignore[no-untyped-call]

    async def cleanup(self) -> None:
        await self._server.cleanup()  # type: ignore[no-untyped-call]

    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: AgentBase[Any] | None = None
    ) -> list[Tool]:
        if not in_workflow_code():
            return await self._server.list_tools(run_context, agent)

        async def request() -> Any:
            return [_as_json(tool) for tool in await self._server.list_tools(run_context, agent)]

        return [Tool.model_validate(tool) for tool in await step(f"{self._prefix}.list_tools", self._options, request)]

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        async def request() -> CallToolResult:
            if meta is None:  # servers of users need not take the parameter
                return await self._server.call_tool(tool_name, arguments)
            return await self._server.call_tool(tool_name, arguments, meta=meta)

        return await self._answer(tool_name, CallToolResult, request)

    async def list_prompts(self) -> ListPromptsResult:
        return await self._answer("list_prompts", ListPromptsResult, self._server.list_prompts)

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> GetPromptResult:
        return await self._answer("get_prompt", GetPromptResult, lambda: self._server.get_prompt(name, arguments))

    async def list_resources(self, cursor: str | None = None) -> ListResourcesResult:
        return await self._answer("list_resources", ListResourcesResult, lambda: self._server.list_resources(cursor))

    async def list_resource_templates(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        return await self._answer(
            "list_resource_templates",
            ListResourceTemplatesResult,
            lambda: self._server.list_resource_templates(cursor),
        )

    async def read_resource(self, uri: str) -> ReadResourceResult:
        return await self._answer("read_resource", ReadResourceResult, lambda: self._server.read_resource(uri))

    async def _answer(self, what: str, kind: type[Answer], request: Callable[[], Awaitable[Answer]]) -> Answer:
        if not in_workflow_code():
            return await request()

        async def call() -> Any:
            return _as_json(await request())

        return TypeAdapter(kind).validate_python(await step(f"{self._prefix}.{what}", self._options, call))


def _as_json(value: BaseModel) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
