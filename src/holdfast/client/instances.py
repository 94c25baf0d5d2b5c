"""Instances: their addresses, their current runs, their statuses, and lists of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.client.records import error_of, position
from holdfast.core import codec
from holdfast.core.checks import is_whole_number
from holdfast.core.filters import Filter, combine
from holdfast.core.limits import Limits
from holdfast.core.model import from_ms
from holdfast.core.names import check_instance_id
from holdfast.core.records import InstanceStatus, InstanceSummary, Page
from holdfast.errors import InstanceNotFoundError, InstanceTerminalError, InvalidOptionError
from holdfast.kernel.definition import Registry
from holdfast.kernel.requests import Requests
from holdfast.store.protocol import Condition, CurrentRuns, RunByName, RunRecord, Store


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
        return require_found(workflow, id, await self.find_or_none(workflow, id, run_number))

    async def find_or_none(self, workflow: str, id: str, run_number: int | None = None) -> RunRecord | None:
        found = await self._store.runs(RunByName(workflow, id, run_number))
        return found[0] if found else None

    async def check_within(self, workflow: str, id: str, filters: Sequence[Filter]) -> None:
        """Raise ``InstanceNotFoundError`` unless an instance exists and matches all of ``filters``.

        If the filters only test the id, the store is not read, and the instance need not exist.
        """
        if not all(one.fits_id(id) for one in filters):
            raise _no_instance(workflow, id)
        if all(one.by_id_only for one in filters):
            return
        row = await self.find(workflow, id)
        search = codec.plain(row.search) or {}
        if not all(one.fits(id, row.status, search) for one in filters):
            raise _no_instance(workflow, id)

    def summary(self, row: RunRecord) -> InstanceSummary:
        return InstanceSummary(row.instance_id, row.workflow, self.status(row), from_ms(row.created_at))

    def status(self, row: RunRecord) -> InstanceStatus:
        """The status of a run. The output is plain JSON, so reading it does not depend on the program's types."""
        native = self._registry.model(row.kind).native_status(row.status)
        return InstanceStatus(row.status.value, error_of(row), codec.plain(row.output), row.kind, native)

    # Last, because `list` hides the built-in type in the class body.
    async def list(
        self,
        workflow: Any = None,
        *,
        status: str | None = None,
        search: Mapping[str, Any] | None = None,
        id_prefix: str | None = None,
        cursor: str | None = None,
        limit: int = 25,
        within: Sequence[Filter] = (),
    ) -> Page[InstanceSummary]:
        """A page of instances. ``within``: additional filters that must match."""
        if not is_whole_number(limit, 1, self._limits.page_size):
            raise InvalidOptionError(f"limit must be between 1 and {self._limits.page_size}, not {limit!r}")
        name = None if workflow is None else self._requests.definition(workflow).name
        before = position(cursor, "i")
        filters = combine([Filter(status=status, search=search, id_prefix=id_prefix), *within])
        if filters is None:
            return Page([], None)
        conditions = [Condition(*one) for one in filters.conditions]
        query = CurrentRuns(name, filters.status, before, limit + 1, conditions, filters.id_prefix)
        rows = await self._store.runs(query)
        more = len(rows) > limit
        items = [self.summary(row) for row in rows[:limit]]
        return Page(items, f"i{rows[limit - 1].instance}" if more else None)


def require_found(workflow: str, id: str, record: RunRecord | None) -> RunRecord:
    if record is None:
        raise _no_instance(workflow, id)
    return record


def refuse_terminal(row: RunRecord, what: str) -> None:
    if row.status.terminal:
        raise InstanceTerminalError(
            f"instance {row.instance_id!r} of {row.workflow!r} is {row.status.value} and cannot be {what}; "
            "restart the instance to run it again"
        )


def _no_instance(workflow: str, id: str) -> InstanceNotFoundError:
    return InstanceNotFoundError(f"there is no instance {id!r} of workflow {workflow!r}")
