"""Deletes finished runs in small transactions."""

from __future__ import annotations

from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Pruned, PrunePosition, PruneRuns


async def prune(tx: Tx, request: PruneRuns) -> Pruned:
    if request.workflow is not None:
        return await _prune(tx, request, request.workflow)
    workflow = request.after.workflow or await _next_workflow(tx, "")
    pruned = await _prune(tx, request, workflow)
    if pruned.next is not None:
        return pruned._replace(next=pruned.next._replace(workflow=workflow))
    workflow = await _next_workflow(tx, workflow)
    return pruned._replace(next=PrunePosition(workflow=workflow)) if workflow else pruned


async def _next_workflow(tx: Tx, after: str) -> str:
    """The name of the next workflow that has runs; empty if there is none."""
    return await tx.connection.fetchval(statements("prune", tx.schema)["next_workflow"], after) or ""


async def _prune(tx: Tx, request: PruneRuns, workflow: str) -> Pruned:
    sql = statements("prune", tx.schema)["prune"]
    rule = (workflow, request.status, request.age_ms, request.keep, request.after.at, request.after.run)
    row = await tx.connection.fetchrow(sql, tx.now, *rule, request.limit, request.dry_run)
    runs, at, run, stored, seconds = row
    return Pruned(runs, None if run is None else PrunePosition(at, run), stored, seconds=seconds)
