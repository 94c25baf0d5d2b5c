"""The topics of live updates: what each kind of page shows, and how its changes are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.client import Client
from holdfast.core.filters import Filter
from holdfast.core.records import InstanceDescription
from holdfast.errors import InstanceNotFoundError
from holdfast.http import response_bodies
from holdfast.http.live import Reader, Update
from holdfast.http.observation import stats_body
from holdfast.http.overview import attention_body
from holdfast.http.response_bodies import date
from holdfast.http.responses import encoded

_MAX_NEWER = 100


def _with_time(client: Client, data: Mapping[str, Any]) -> dict[str, Any]:
    return {**data, "now": date(client.now())}


class OverviewReader(Reader):
    """Statistics, and the number of groups that need attention. Both are at most five seconds old."""

    def __init__(self) -> None:
        self._last = ""
        self._attention = ""
        self._version = 0

    async def read(self, client: Client) -> Update | None:
        groups = attention_body(await client.overview.attention())
        workers = await client.workers()
        attention = encoded(groups)
        self._version += attention != self._attention
        self._attention = attention
        data: dict[str, Any] = {
            "stats": stats_body(await client.stats.read()),
            "attention": {"groups": len(groups["groups"]), "runs": groups["runs"], "version": self._version},
            "workers": {"alive": sum(worker.alive for worker in workers), "total": len(workers)},
        }
        text = encoded(data)
        if text == self._last:
            return None
        self._last = text
        full = _with_time(client, data)
        return Update("overview", full, "overview", lambda: full)


class RunReader(Reader):
    """One run: its status, and numbers that tell a page which parts to read again."""

    def __init__(self, workflow: str, instance_id: str) -> None:
        self._address = workflow, instance_id
        self._seen: object = None

    async def read(self, client: Client) -> Update | None:
        try:
            mark = await client.details.mark(*self._address)
        except InstanceNotFoundError:
            if self._seen == "gone":
                return None
            self._seen = "gone"
            gone = _with_time(client, {})
            return Update("gone", gone, "gone", lambda: gone)
        if mark == self._seen:
            return None
        self._seen = mark
        description = await client.reads.describe_listed(mark.row)
        _row, *numbers = mark
        data = _with_time(client, {**_run(description), **dict(zip(mark._fields[1:], numbers, strict=True))})
        return Update("run", data, "run", lambda: data)


def _run(description: InstanceDescription) -> dict[str, Any]:
    meta = response_bodies.described_instance(description)["meta"]
    fields = ("runNumber", "why", "whyParts", "updatedAt", "completedAt", "currentStep", "owner")
    shown = {name: value for name, value in meta.items() if name in fields}
    return {
        "workflowName": description.workflow_name,
        "id": description.id,
        "status": description.status,
        **shown,
    }


class ListQuery(NamedTuple):
    """The query of a page of a list. ``cursor`` is before the first row, so that new rows do not move the others."""

    filters: tuple[Filter, ...]
    cursor: str | None
    first: int | None
    """The instance number of the first row; None if the list was empty."""
    limit: int
    ascending: bool


class ListReader(Reader):
    """A page of a list: the rows that changed, the rows that left, and the number of newer rows."""

    def __init__(self, query: ListQuery) -> None:
        self._query = query
        self._marks: dict[str, object] = {}
        self._rows: dict[str, Any] = {}
        self._newer = -1

    async def read(self, client: Client) -> Update | None:
        query = self._query
        page = await client.instances.page(
            query.filters, cursor=query.cursor, limit=query.limit, ascending=query.ascending
        )
        newer = await self._count_newer(client)
        marks = {row.pid: _mark(row) for row in page.items}
        gone = [pid for pid in self._rows if pid not in marks]
        changed = {}
        for row in page.items:
            if self._marks.get(row.pid) != marks[row.pid]:
                description = await client.reads.describe_listed(row)
                changed[row.pid] = response_bodies.found_instance(client.instances.summary(row), description)
        if not changed and not gone and newer == self._newer:
            return None
        self._newer, self._marks = newer, marks
        self._rows = {pid: changed.get(pid) or self._rows[pid] for pid in marks}
        data = _with_time(client, {"changed": [*changed.values()], "gone": gone, "newer": newer})
        rows: Sequence[Any] = [*self._rows.values()]
        return Update("rows", data, "reset", lambda: {"instances": rows, "newer": newer, "now": data["now"]})

    async def _count_newer(self, client: Client) -> int:
        query = self._query
        if query.ascending or query.first is None:
            return 0
        page = await client.instances.page(query.filters, cursor=f"p{query.first}", limit=_MAX_NEWER)
        return len(page.items)


def _mark(row: Any) -> object:
    return row.run, row.status, row.updated_at, row.owner, row.run_at, row.pausing, row.losses


class ChangeReader(Reader):
    """A list that pages read again when it changed: workers, workflows."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last: object = None

    async def read(self, client: Client) -> Update | None:
        if self._what == "workers":
            seen: object = [(worker.id, worker.alive, worker.version) for worker in await client.workers()]
        else:
            seen = (await client.stats.read()).runs
        if seen == self._last:
            return None
        self._last = seen
        data = _with_time(client, {})
        return Update("changed", data, "changed", lambda: data)
