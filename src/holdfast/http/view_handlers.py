"""The request handlers of stack, replay and export."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.client.run_file import without_secrets
from holdfast.http import responses, view_bodies, wire_views
from holdfast.http.handlers import Handlers, Id, Name
from holdfast.http.queries import check_query
from holdfast.http.responses import reply


class Views(Handlers):
    """One run on the code of the server."""

    async def stack(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_views.StackParams, Query()]
    ) -> Response:
        """The tasks of a run's code with their frames and local variables, by a replay on the code of the server."""
        self._check_enabled()
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        return reply(view_bodies.stack(await client.views.stack(*address, all=query.all)))

    async def replay(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_views.ReplayParams, Query()]
    ) -> Response:
        """A run after ``until`` facts of its history: its stack, what its code waits for, its log lines."""
        self._check_enabled()
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        view = await client.views.replay(*address, query.until, run_number=query.runNumber, all=query.all)
        return reply(view_bodies.replay(view))

    async def fact_positions(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_views.ExportParams, Query()]
    ) -> Response:
        """The lines of code that the first 300 facts of a run resumed, by a replay on the code of the server."""
        self._check_enabled()
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        return reply(
            view_bodies.fact_positions(await client.views.fact_positions(*address, run_number=query.runNumber))
        )

    async def export(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_views.ExportParams, Query()]
    ) -> Response:
        """A run as a document that ``holdfast replay --file`` replays: its input, facts, events and log lines.

        Secrets are hidden, unlike in the file of ``run.export``, which only the program itself can write.
        """
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        return reply(without_secrets(await client.views.document(*address, run_number=query.runNumber)))

    def _check_enabled(self) -> None:
        if not self._backend.debug:
            raise responses.Problem(
                403, responses.DEBUG_DISABLED, "stacks and replays over HTTP are not enabled on this server"
            )
