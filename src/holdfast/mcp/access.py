"""Authorization of MCP requests: the hooks of the app allow or deny requests over HTTP, as those of the HTTP API.

A request over stdio has no headers: the client started the command, and has the rights of its user. This module maps
tools to the routes of the HTTP API, so that one policy covers both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.app import Holdfast
from holdfast.core.actor import current_actor
from holdfast.core.filters import Filter
from holdfast.extras import extra
from holdfast.http.auth import (
    AuthContent,
    AuthEvent,
    AuthInstance,
    AuthRequest,
    Denied,
    HookTimeout,
    Scope,
)

with extra("mcp", "The MCP server"):
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver.exceptions import ResourceError, ToolError


class Route(NamedTuple):
    """The route of the HTTP API that does the same as a tool."""

    name: str
    method: str
    scope: Scope


ROUTES: Mapping[str, Route] = {
    "list_runs": Route("listAllInstances", "GET", Scope.READ),
    "explain_run": Route("getInstance", "GET", Scope.READ),
    "run_history": Route("getHistory", "GET", Scope.READ),
    "run_logs": Route("getHistory", "GET", Scope.READ),
    "run_stack": Route("getStack", "GET", Scope.DEBUG),
    "statistics": Route("getStats", "GET", Scope.READ),
    "audit_records": Route("getAllAudit", "GET", Scope.READ),
    "check_code": Route("replayInstance", "GET", Scope.DEBUG),
    "start_run": Route("createInstance", "POST", Scope.CREATE),
    "send_event": Route("sendEvent", "POST", Scope.SEND_EVENT),
    "retry_run": Route("retryInstance", "POST", Scope.MANAGE),
    "fork_run": Route("forkInstance", "POST", Scope.MANAGE),
    "resolve_step": Route("resolveStep", "POST", Scope.MANAGE),
    "pause_run": Route("pauseInstance", "POST", Scope.MANAGE),
    "resume_run": Route("resumeInstance", "POST", Scope.MANAGE),
    "cancel_run": Route("cancelInstance", "POST", Scope.MANAGE),
    "terminate_run": Route("terminateInstance", "POST", Scope.MANAGE),
}
_RESOURCES = Route("listWorkflows", "GET", Scope.READ)


class AuthorizedServer(MCPServer[Any]):
    """An MCP server that calls the hooks of an app before each request over HTTP.

    A hook that confines the caller to some instances by a ``Filter`` denies the request: tools do not apply filters.
    """

    def __init__(self, app: Holdfast, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._app = app

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
        actor = current_actor.set(None)  # a hook names the actor of this request
        try:
            problem = await self._problem(context, lambda headers: _tool_requests(name, arguments, headers))
            if problem is not None:
                raise ToolError(problem)
            return await super().call_tool(name, arguments, context)
        finally:
            current_actor.reset(actor)

    async def read_resource(self, uri: Any, context: Context[Any, Any] | None = None) -> Any:
        def requests(headers: Mapping[str, str]) -> list[AuthRequest]:
            return [AuthRequest(_RESOURCES.name, _RESOURCES.method, None, None, headers, _RESOURCES.scope)]

        if (problem := await self._problem(context, requests)) is not None:
            raise ResourceError(problem)
        return await super().read_resource(uri, context)

    async def _problem(self, context: Context[Any, Any] | None, requests_of: Any) -> str | None:
        """The reason for which the hooks of the app deny a request; None: they allow it."""
        authorize = self._app.authorize
        headers = None if context is None else context.headers
        if headers is None or authorize is None or authorize.open:
            return None
        filters: list[Filter] = []
        try:
            for request in requests_of(headers):
                filters += await authorize.run_request_hook(request)
                filters += await authorize.run_scope_hook(request)
        except Denied as denied:
            return f"denied ({denied.status}): {denied.message}"
        except HookTimeout:
            return "denied (503): the authorization took too long"
        return "denied (403): the policy confines this caller to some runs; use the HTTP API" if filters else None


def _tool_requests(name: str, arguments: Mapping[str, Any], headers: Mapping[str, str]) -> list[AuthRequest]:
    """The requests that a caller of the tool must be allowed to make.

    The tool of a workflow returns the result of the run that has ``run_id``, which another caller may have started.
    """
    request = _tool_request(name, arguments, headers)
    if name in ROUTES or arguments.get("run_id") is None:
        return [request]
    read = ROUTES["explain_run"]
    return [request, AuthRequest(read.name, read.method, name, str(arguments["run_id"]), headers, read.scope)]


def _tool_request(name: str, arguments: Mapping[str, Any], headers: Mapping[str, str]) -> AuthRequest:
    """The request as a hook sees it. A tool without a route is a workflow of this name, of which it starts a run."""
    route = ROUTES.get(name)
    workflow, instance = arguments.get("workflow"), arguments.get("id")
    if route is None:
        route, workflow, instance = ROUTES["start_run"], name, arguments.get("run_id")
    content = AuthContent(dict(arguments))
    if route.scope is Scope.CREATE:
        content = AuthContent(dict(arguments), [AuthInstance(instance, arguments.get("params"))])
        instance = None
    elif route.scope is Scope.SEND_EVENT:
        event = AuthEvent(str(arguments.get("type")), arguments.get("payload"), arguments.get("event_id"))
        content = AuthContent(dict(arguments), event=event)
    return AuthRequest(route.name, route.method, workflow, instance, headers, route.scope, content=content)
