"""Reads of runs that consist of units: facts by key, results, drawings. The model of the run does the work."""

from __future__ import annotations

from typing import Any

from holdfast.client.instances import Instances
from holdfast.core.checks import check_text
from holdfast.errors import InvalidOptionError
from holdfast.kernel.definition import Registry
from holdfast.kernel.model import UnitModel
from holdfast.store.protocol import RunRecord, Store


class UnitReader:
    """Reads runs that consist of units; raises ``InvalidOptionError`` for other runs."""

    def __init__(self, store: Store, registry: Registry, instances: Instances) -> None:
        self._store = store
        self._registry = registry
        self._instances = instances

    async def find(self, workflow: str, id: str) -> RunRecord:
        """The current run of an instance, which must consist of units."""
        row, _ = await self._find(workflow, id)
        return row

    async def _find(self, workflow: str, id: str) -> tuple[RunRecord, UnitModel]:
        row = await self._instances.find(workflow, id)
        units = self._registry.model(row.kind).units
        if units is None:
            raise InvalidOptionError(f"instance {id!r} of {workflow!r} is a {row.kind}, not a graph")
        return row, units

    async def facts(self, workflow: str, id: str, prefix: str = "") -> dict[str, Any]:
        check_text("prefix", prefix)
        row, units = await self._find(workflow, id)
        return await units.facts(self._store, row, prefix)

    async def results(self, workflow: str, id: str) -> dict[str, Any]:
        row, units = await self._find(workflow, id)
        return await units.results(self._store, row)

    async def draw_run(self, workflow: str, id: str) -> str:
        row, units = await self._find(workflow, id)
        return await units.draw_run(self._store, row)

    def draw_definition(self, workflow: str) -> str:
        """A registered definition as a Mermaid flowchart."""
        definition = self._registry.get(workflow)
        units = self._registry.model(definition.kind).units
        if units is None:
            raise InvalidOptionError(f"{workflow!r} is a {definition.kind}, not a graph")
        return units.draw_definition(definition)
