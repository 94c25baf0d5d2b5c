"""Instances: their addresses, their current runs, their statuses, and lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.client.records import check_choice, error_of, position, reading
from holdfast.core import codec
from holdfast.core.checks import is_whole_number
from holdfast.core.filters import CombinedFilter, Filter, FilteredRun, combine
from holdfast.core.limits import Limits
from holdfast.core.model import Status, from_ms
from holdfast.core.names import check_instance_id
from holdfast.core.records import InstanceStatus, InstanceSummary, Page
from holdfast.core.show import shown
from holdfast.errors import DamagedRunError, ErrorInfo, InstanceNotFoundError, InstanceTerminalError, InvalidOptionError
from holdfast.kernel.definition import Registry
from holdfast.kernel.requests import Requests
from holdfast.store.protocol import Condition, CurrentRuns, RunByName, RunRecord, Store

_MAX_RUN_NUMBER = 2**63 - 1
"""The largest number that both stores have a type for."""


class Instances:
    """Finds instances and shows their statuses."""

    def __init__(self, store: Store, registry: Registry, requests: Requests, limits: Limits) -> None:
        self._store = store
        self._registry = registry
        self._requests = requests
        self._limits = limits

    def address(self, workflow: Any, id: str) -> tuple[str, str]:
        """The checked workflow name and instance id. The workflow must be registered; the instance need not exist."""
        return self._requests.definition(workflow).name, check_instance_id(id, self._limits)

    async def find(self, workflow: str, id: str, run_number: int | None = None) -> RunRecord:
        found = await self.find_or_none(workflow, id, run_number)
        if found is None and run_number is not None:
            raise InstanceNotFoundError(f"there is no run {run_number} of instance {id!r} of workflow {workflow!r}")
        return require_found(workflow, id, found)

    async def find_or_none(self, workflow: str, id: str, run_number: int | None = None) -> RunRecord | None:
        if run_number is not None and check_run_number(run_number) > _MAX_RUN_NUMBER:
            return None
        found = await self._store.read(RunByName(workflow, id, run_number))
        return found[0] if found else None

    async def check_within(self, workflow: str, id: str, filters: Sequence[Filter]) -> None:
        """Raise ``InstanceNotFoundError`` unless an instance exists and matches all of ``filters``.

        If the filters only test the id, the store is not read, and the instance need not exist.
        """
        if not all(one.fits_id(workflow, id) for one in filters):
            raise _no_instance(workflow, id)
        if all(one.by_id_only for one in filters):
            return
        run = _filtered(await self.find(workflow, id))
        if not all(one.fits(run) for one in filters):
            raise _no_instance(workflow, id)

    def summary(self, row: RunRecord) -> InstanceSummary:
        try:
            status = self.status(row)
        except DamagedRunError as error:  # one damaged run does not make a list unreadable
            status = InstanceStatus(row.status.value, ErrorInfo(type(error).__name__, str(error)), None, row.kind)
        return InstanceSummary(row.instance_id, row.workflow, status, from_ms(row.created_at))

    def status(self, row: RunRecord) -> InstanceStatus:
        """The status of a run. The output is plain JSON, so reading it does not depend on the program's types."""
        native = self._registry.model(row.kind).native_status(row.status)
        with reading(row):
            return InstanceStatus(row.status.value, error_of(row), codec.displayed(row.output), row.kind, native)

    async def page(
        self, filters: Sequence[Filter], *, cursor: str | None = None, limit: int = 25, ascending: bool = False
    ) -> Page[RunRecord]:
        """A page of the current runs that match all filters, the newest instance first unless ``ascending``.

        A cursor that begins with ``p`` leads to the page before.
        """
        if not is_whole_number(limit, 1, self._limits.page_size):
            raise InvalidOptionError(f"limit must be between 1 and {self._limits.page_size}, not {limit!r}")
        back = isinstance(cursor, str) and cursor.startswith("p")
        start = position(cursor, "p" if back else "i")
        combined = combine(filters)
        if combined is None:
            return Page([], None)
        if combined.workflow is not None:
            self._requests.definition(combined.workflow)
        rows = await self._store.read(current_runs(combined, start, limit + 1, ascending=ascending is not back))
        return _page_back(rows, limit) if back else _page_on(rows, limit, first=start is None)

    # Last, because `list` hides the built-in type in the class body.
    async def list(
        self,
        workflow: Any = None,
        *,
        cursor: str | None = None,
        limit: int = 25,
        within: Sequence[Filter] = (),
        order: str = "desc",
        **conditions: Any,
    ) -> Page[InstanceSummary]:
        """A page of instances. ``conditions``: those of a ``Filter``; ``within``: filters that must match too."""
        name = None if workflow is None else self._requests.definition(workflow).name
        ascending = check_choice("order", order, ("asc", "desc")) == "asc"
        filters = [Filter(workflow=name, **conditions), *within]
        page = await self.page(filters, cursor=cursor, limit=limit, ascending=ascending)
        return Page([self.summary(row) for row in page.items], page.cursor)


def _page_on(rows: Sequence[RunRecord], limit: int, *, first: bool) -> Page[RunRecord]:
    """A page of rows in its own order, of which one more than ``limit`` was read."""
    items = [*rows[:limit]]
    return Page(
        items,
        f"i{items[-1].instance}" if len(rows) > limit else None,
        f"p{items[0].instance}" if items and not first else None,
    )


def _page_back(rows: Sequence[RunRecord], limit: int) -> Page[RunRecord]:
    """A page of rows that were read in the opposite order."""
    items = [*reversed(rows[:limit])]
    return Page(
        items,
        f"i{items[-1].instance}" if items else None,
        f"p{items[0].instance}" if len(rows) > limit else None,
    )


def current_runs(filter: CombinedFilter, start: int | None, limit: int, *, ascending: bool = False) -> CurrentRuns:
    """The query for a page of the runs that match a filter."""
    return CurrentRuns(
        workflow=filter.workflow,
        status=filter.status,
        before=start,
        limit=limit,
        search=[Condition(*one) for one in filter.conditions],
        id_prefix=filter.id_prefix,
        error=filter.error,
        version=filter.version,
        queue=filter.queue,
        created=filter.created,
        ended=filter.ended,
        ascending=ascending,
    )


def _filtered(row: RunRecord) -> FilteredRun:
    error = error_of(row)
    return FilteredRun(
        row.workflow,
        row.instance_id,
        row.status,
        codec.displayed(row.search) or {},
        None if error is None else error.name,
        row.created_at,
        row.completed_at,
        row.version,
        row.queue,
    )


def check_run_number(number: Any) -> int:
    if not is_whole_number(number, 0):
        raise InvalidOptionError(f"run_number must be a whole number of at least 0, not {shown(number)}")
    return number


def require_found(workflow: str, id: str, record: RunRecord | None) -> RunRecord:
    if record is None:
        raise _no_instance(workflow, id)
    return record


def refuse_terminal(row: RunRecord, what: str) -> None:
    if row.status.terminal:
        retry = "retry it to continue from its history, or " if row.status is Status.ERRORED else ""
        raise InstanceTerminalError(
            f"instance {row.instance_id!r} of {row.workflow!r} is {row.status.value} and cannot be {what}; "
            f"{retry}restart the instance to run it again"
        )


def _no_instance(workflow: str, id: str) -> InstanceNotFoundError:
    return InstanceNotFoundError(f"there is no instance {id!r} of workflow {workflow!r}")
