"""Runs that continue from the recorded history of another run, and the deletion of instances.

The statements of a request run in one transaction, which the store commits.
"""

from __future__ import annotations

from holdfast.core.model import Status
from holdfast.store.postgres.columns import FACT, UNIT
from holdfast.store.postgres.reads import find_run
from holdfast.store.postgres.rows import record
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import encode_text
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import AffectedRuns, ContinueRun, ControlResult, DeleteInstance, RunRecord


async def continue_run(tx: Tx, request: ContinueRun, token: int) -> ControlResult:
    sql, connection = statements("repair", tx.schema), tx.connection
    await connection.execute(sql["lock_source"], request.run)
    row = await connection.fetchrow(sql["record"], request.run)
    if row is None:
        return ControlResult(None, AffectedRuns())
    source = record(tuple(row))
    refused = await _refusal(tx, source, request)
    if refused is not None:
        return refused
    await connection.execute(sql["lock_watched"], [encode_text(pid) for pid, _ in request.watches])
    expiry = None if request.expires_ms is None else request.expiry
    common = (tx.now, tx.store_id, source.run, token, request.params, source.attempt, request.expires_ms, expiry)
    units = UNIT.arrays(request.units)
    new: int = await connection.fetchval(sql["insert"], *common, request.options, request.fork_id, *units)
    if request.fork_id is None:
        await connection.execute(sql["move_undelivered"], source.run, new)
    await connection.execute(sql["set_history"], new, source.started_at, request.origin)
    await connection.execute(sql["copy_events"], source.run, new, list(request.events))
    await connection.execute(sql["insert_facts"], new, *FACT.arrays(request.facts))
    if request.units:
        await connection.execute(sql["set_open_nodes"], new, request.open_nodes)
    for pid, watch in request.watches:
        await connection.execute(sql["watch"], tx.now, new, encode_text(pid), int(watch))
    if request.fork_id is not None:
        await connection.execute(sql["unlink_partners"], new)
    else:
        await connection.execute(sql["set_retried"], source.run)
    created = await connection.fetchrow(sql["record"], new)
    return ControlResult(record(tuple(created)), AffectedRuns(work=True))


async def _refusal(tx: Tx, source: RunRecord, request: ContinueRun) -> ControlResult | None:
    """The result if the run cannot be created: the source is in another state, or the id of the fork exists."""
    if request.fork_id is None:
        if source.current and source.status is Status.ERRORED:
            return None
        return ControlResult(source, AffectedRuns(), refused=True)
    existing = await find_run(tx, request.workflow, request.fork_id, None)
    return None if existing is None else ControlResult(existing, AffectedRuns(), refused=True)


async def delete(tx: Tx, request: DeleteInstance) -> ControlResult:
    sql, connection = statements("repair", tx.schema), tx.connection
    await connection.execute(sql["lock_instance"], request.workflow, request.instance_id)
    run = await find_run(tx, request.workflow, request.instance_id, None)
    if run is None or not run.status.terminal or request.run not in (None, run.run):
        return ControlResult(run, AffectedRuns(), refused=run is not None)
    await connection.execute(sql["delete_instance"], request.workflow, request.instance_id)
    return ControlResult(run, AffectedRuns())
