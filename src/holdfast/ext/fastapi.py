"""FastAPI and Starlette: the response that a run was accepted, and a route that waits for its result.

The links of the response lead to the routes of ``app.asgi()``, mounted in the same application, or to other routes of
the program.
"""

from __future__ import annotations

from typing import Any, TypeVar

from typing_extensions import TypedDict

from holdfast.client import Handle
from holdfast.core.durations import Duration
from holdfast.extras import extra

with extra("server", "holdfast.ext.fastapi"):
    from fastapi.responses import JSONResponse
    from starlette.requests import Request

__all__ = ["Accepted", "Links", "accepted", "result_or_accepted"]

R = TypeVar("R")


class Links(TypedDict):
    self: str
    result: str


class Accepted(TypedDict):
    """The body of ``accepted``, for ``response_model=`` and ``responses=``."""

    id: str
    workflow: str
    links: Links


def accepted(
    request: Request, run: Handle[Any], *, api: str = "/api/workflows", wait: str = "30s", result: str | None = None
) -> JSONResponse:
    """A response with status 202 for a run that was started, and links for the caller.

    ``Location`` and ``links.self`` lead to the instance, ``links.result`` to a long poll that returns after at most
    ``wait``: status 200 with the result of a run that has ended, 202 while it has not. ``api`` is the path at which
    the HTTP API is mounted in the application that serves ``request``; ``result`` is the path of another route
    for the long poll, such as one with ``result_or_accepted``.

    Example::

        @web.post("/orders", status_code=202, response_model=Accepted)
        async def place(request: Request, order: Order, holdfast: Annotated[Holdfast, Depends(app.client)]):
            return accepted(request, await holdfast.start(fulfil, order, id=order.id))
    """
    root = request.scope.get("root_path", "").rstrip("/")
    instance = f"{root}{api.rstrip('/')}/{run.workflow}/instances/{run.id}"
    poll = f"{instance}/result?wait={wait}" if result is None else root + result
    body: Accepted = {"id": run.id, "workflow": run.workflow, "links": {"self": instance, "result": poll}}
    return JSONResponse(body, status_code=202, headers={"Location": instance})


async def result_or_accepted(
    request: Request, run: Handle[R], *, wait: Duration = "30 seconds", api: str = "/api/workflows"
) -> R | JSONResponse:
    """The result of a run, for a route with the type of the workflow's result; after ``wait`` a response with 202.

    The response links to the same route, so a client repeats the request until the status is 200. A run that has failed
    raises ``RunFailedError``.

    Example::

        @web.get("/orders/{id}/result", response_model=Receipt, responses={202: {"model": Accepted}})
        async def result(request: Request, id: str, holdfast: Annotated[Holdfast, Depends(app.client)]):
            return await result_or_accepted(request, await holdfast.get(fulfil, id))
    """
    try:
        return await run.result(timeout=wait)
    except TimeoutError:
        return accepted(
            request, run, api=api, result=request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        )
