"""The request handlers of a run's details: timeline, one step, facts, mailbox, family."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.http import response_bodies, run_bodies, wire_run
from holdfast.http.admission import admitted
from holdfast.http.handlers import Handlers, Id, Name
from holdfast.http.queries import check_query
from holdfast.http.responses import reply


class Details(Handlers):
    """Details of one run."""

    async def timeline(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_run.TimelineParams, Query()]
    ) -> Response:
        """The steps of a run with every attempt, and the workers that held the run; times in milliseconds."""
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        record = await client.details.timeline(*address, query.runNumber, query.since)
        return reply(run_bodies.timeline(record))

    async def step(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_run.StepParams, Query()]
    ) -> Response:
        """One step of a run, with its result and its error."""
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        step = await client.details.step(*address, query.runNumber, query.key)
        return reply({"step": None if step is None else response_bodies.step(step)})

    async def facts(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_run.FactPageParams, Query()]
    ) -> Response:
        """The facts of a run as they are stored, in the order of their times."""
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        limit = self._page_size(query.pageSize)
        page, total = await client.details.facts(*address, query.runNumber, cursor=query.cursor, limit=limit)
        return reply(run_bodies.facts(page, total))

    async def mailbox(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_run.MailboxParams, Query()]
    ) -> Response:
        """The events that a run received, with the step that consumed each, and the types that the run waits for."""
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        row, page, replies = await client.details.mailbox(
            *address,
            query.runNumber,
            cursor=query.cursor,
            limit=self._page_size(query.pageSize),
            descending=query.order == "desc",
        )
        return reply(run_bodies.mailbox(row.number, sorted(row.topics), page, replies))

    async def family(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """The relatives of the current run: ancestors, children, links, monitors, watchers and forks."""
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        return reply(run_bodies.family(await client.details.family(*address, admitted(request).filters)))
