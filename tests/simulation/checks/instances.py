"""Checks the end of each instance against its parameters and the requests of clients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.testing.simulation.database import SimulatedDatabase
from simulation.features.table import REQUESTS
from simulation.programs import names
from simulation.programs.chain_and_graph import fits_chain, fits_graph
from simulation.programs.failing_items import fits_failing_items, fits_failing_items_error
from simulation.programs.graph_of_runs import FAILING_NODE, graph_of_runs_fails
from simulation.programs.names import CHAIN, PROGRAMS
from simulation.programs.possible_results import fits, fits_graph_of_runs
from simulation.programs.program import messages
from simulation.programs.step_leases import fits_chain_with_leases
from simulation.system.workload import Instance
from simulation.system.world import World

_GRAPHS = (names.GRAPH, names.GRAPH_OF_RUNS, names.GRAPH_WITH_FAILING_ITEMS)


def instance_failures(world: World, instance: Instance) -> Iterator[str]:
    database = world.database
    rows = database.rows(
        "SELECT status, output, error, note FROM holdfast_run WHERE instance_id = ? AND current = 1", instance.id
    )
    if not rows:
        if instance.started:
            yield f"the start of {instance.id} was acknowledged, and the store has no such instance"
        return
    status, output, error, note = rows[0]
    if status == "complete":
        yield from _result(instance, codec.plain(output))
    elif any(REQUESTS[name].end == status for name in instance.control_requests):
        pass
    elif status == "errored" and b"VersionUnsupportedError" in error and world.deployed:
        pass  # a worker with the previous version of the code claimed the run
    elif status == "errored" and _may_fail(instance, error):
        pass
    else:
        yield f"{instance.id} is {status} without a request or an error that explains it: {error!r} {note!r}"
    terminated = "terminate" in instance.acknowledged_requests
    if terminated and status != "terminated" and not instance.begins_again:
        yield f"the termination of {instance.id} was acknowledged, and its status is {status}"
    yield from _cancellation(instance, status)
    yield from _lost_events(database, instance)
    if status == "complete" and instance.workflow == CHAIN:
        [(outbound,)] = database.rows(
            "SELECT count(*) FROM holdfast_outbox AS o JOIN holdfast_run AS r ON r.id = o.run "
            "WHERE r.instance_id = ? AND r.current = 1",
            instance.id,
        )
        if outbound != len(instance.params):
            yield f"the {len(instance.params)} steps of {instance.id} wrote {outbound} outbound events"


def _may_fail(instance: Instance, error: bytes) -> bool:
    match instance.workflow:
        case names.GRAPH_OF_RUNS:
            return graph_of_runs_fails(instance.params) and FAILING_NODE.encode() in error
        case names.GRAPH_WITH_FAILING_ITEMS:
            return fits_failing_items_error(instance.params, Failure.decode(error).message)
        case _:
            return False


def _cancellation(instance: Instance, status: str) -> Iterator[str]:
    """Check that a graph whose cancellation was acknowledged is cancelled. A workflow may end in another way."""
    if instance.workflow not in _GRAPHS or "cancel" not in instance.acknowledged_requests:
        return
    if status != "cancelled" and not instance.begins_again and "terminate" not in instance.control_requests:
        yield f"the cancellation of {instance.id} was acknowledged, and its status is {status}"


def _result(instance: Instance, result: Any) -> Iterator[str]:
    if not _fits(instance, result):
        yield f"{instance.id} has an impossible result: {instance.params} gave {result}"
    elif instance.workflow in PROGRAMS:
        yield from _messages(instance, messages(instance.params, result))
        yield from _messages(instance, messages(instance.params, result, "parcels"))
    for received in instance.results:
        if received != result and not instance.begins_again:
            yield f"a client received {received} as the result of {instance.id}, which returned {result}"


def _fits(instance: Instance, result: Any) -> bool:
    match instance.workflow:
        case names.CHAIN:
            return fits_chain(instance.params, result, instance.sent)
        case names.GRAPH_WITH_FAILING_ITEMS:
            return fits_failing_items(instance.params, result)
        case names.CHAIN_WITH_LEASES:
            return fits_chain_with_leases(instance.params, result)
        case names.GRAPH:
            return fits_graph(instance.params, result)
        case names.GRAPH_OF_RUNS:
            return fits_graph_of_runs(instance.params, result)
        case _:
            rounds = instance.params
            return len(result) == len(rounds) and all(map(fits, rounds, result, repeat(instance.sent)))


def _messages(instance: Instance, received: list[list[int]]) -> Iterator[str]:
    if instance.begins_again:
        return  # messages that were undelivered then stay with the old run
    numbers = [number for numbers_of_round in received for number in numbers_of_round]
    if numbers != [*range(1, len(numbers) + 1)]:
        yield f"{instance.id} did not receive each message once and in order: {received}"


def _lost_events(database: SimulatedDatabase, instance: Instance) -> Iterator[str]:
    sql = (
        "SELECT e.dedup FROM holdfast_event AS e JOIN holdfast_run AS r ON r.id = e.run "
        "WHERE r.instance_id = ? AND e.dedup IS NOT NULL"
    )
    stored = {dedup for (dedup,) in database.rows(sql, instance.id)}
    for lost in sorted(instance.acknowledged - stored):
        yield f"{lost} was sent to {instance.id} and acknowledged, and is not stored"
