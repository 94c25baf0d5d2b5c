"""FastAPI and Starlette: the response that a run was accepted, with links to its state and its result.

The routes behind the links are those of ``app.asgi()``, mounted in the same application.
"""

from __future__ import annotations

from typing import Any

from holdfast.client import Handle
from holdfast.extras import extra

with extra("server", "holdfast.ext.fastapi"):
    from fastapi.responses import JSONResponse
    from starlette.requests import Request


def accepted(request: Request, run: Handle[Any], *, api: str = "/api/workflows", wait: str = "30s") -> JSONResponse:
    """A response with status 202 for a run that was started, and links for the caller.

    ``Location`` and ``links.self`` lead to the instance, ``links.result`` to a long poll that returns after at most
    ``wait``: status 200 with the result of a run that has ended, 202 while it has not. ``api`` is the path at which
    the HTTP API is mounted in the application that serves ``request``.

    Example::

        @web.post("/orders", status_code=202)
        async def place(request: Request, order: Order, holdfast: Annotated[Holdfast, Depends(app.client)]):
            return accepted(request, await holdfast.start(fulfil, order, id=order.id))
    """
    root = request.scope.get("root_path", "").rstrip("/")
    instance = f"{root}{api.rstrip('/')}/{run.workflow}/instances/{run.id}"
    links = {"self": instance, "result": f"{instance}/result?wait={wait}"}
    body = {"id": run.id, "workflow": run.workflow, "links": links}
    return JSONResponse(body, status_code=202, headers={"Location": instance})
