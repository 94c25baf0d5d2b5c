"""Checks the end of each instance against its parameters and the requests of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

from holdfast.core import codec
from holdfast.core.failure import Failure
from simulation.checks.database import WatchedDatabase
from simulation.features.repairs import edited, fork_id
from simulation.features.table import REQUESTS
from simulation.programs import names
from simulation.programs.chain_and_graph import fits_chain, fits_graph
from simulation.programs.failing_items import fits_failing_items, fits_failing_items_error
from simulation.programs.graph_of_runs import FAILING_NODE, graph_of_runs_fails
from simulation.programs.names import CHAIN, PROGRAMS
from simulation.programs.possible_results import fits, fits_graph_of_runs
from simulation.programs.program import BROKEN, PARCEL, messages, parcel, stopped_token
from simulation.programs.step_leases import fits_chain_with_leases
from simulation.system.workload import Instance
from simulation.system.world import World

_REPAIRS = {"retry", "resolve"}
_GRAPHS = (names.GRAPH, names.GRAPH_OF_RUNS, names.GRAPH_WITH_FAILING_ITEMS)


def instance_failures(world: World, instance: Instance) -> Iterator[str]:
    database = world.database
    rows = database.rows(
        "SELECT status, output, error, note FROM holdfast_run WHERE instance_id = ? AND current = 1", instance.id
    )
    yield from (f"a check of the open runs found: {line}" for line in instance.unfit)
    if database.repairs.is_removed(instance.id):
        return
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
    if status == "complete" and instance.workflow == CHAIN and not _has_removed_runs(database, instance):
        [(outbound,)] = database.rows(
            "SELECT count(*) FROM holdfast_outbox AS o JOIN holdfast_run AS r ON r.id = o.run "
            "WHERE r.instance_id = ? AND coalesce(r.line, r.id) = "
            "(SELECT coalesce(line, id) FROM holdfast_run WHERE instance_id = ? AND current = 1)",
            instance.id,
            instance.id,
        )
        resolved_steps = sum(token.startswith("resolve.") for token in instance.sent)
        if not len(instance.params) - resolved_steps <= outbound <= len(instance.params):
            yield f"the {len(instance.params)} steps of {instance.id} wrote {outbound} outbound events"


def _may_fail(instance: Instance, error: bytes) -> bool:
    if instance.breaks and (BROKEN.encode() in error or instance.workflow == names.GRAPH_OF_RUNS):
        return True
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
        yield from _messages(instance, messages(instance.params, result), lambda n: f"topic.{n}")
        parcels = messages(instance.params, result, "parcels")
        yield from _messages(instance, parcels, lambda n: f"{PARCEL}.{parcel(n)}")
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
            return fits_graph(instance.params, result, instance.sent)
        case names.GRAPH_OF_RUNS:
            return fits_graph_of_runs(instance.params, result)
        case _:
            rounds = instance.params
            return len(result) == len(rounds) and all(map(fits, rounds, result, repeat(instance.sent)))


def fork_failures(world: World) -> Iterator[str]:
    """Check the result of each fork that completed against the program, with the edited results."""
    instances, bulk = world.workload.instances, world.database.bulk
    forks = [(one, fork_id(one.id), *one.forks[0]) for one in instances.values() if one.forks]
    forks += [(instances[origin], fork, before, []) for origin, fork, before in bulk.forks if origin in instances]
    replaced = bulk.instances_with_new_runs()
    for instance, fork, before, outputs in forks:
        if not world.database.repairs.is_removed(fork) and fork not in replaced:
            yield from _fork(world, instance, fork, before, outputs)


def _fork(world: World, instance: Instance, fork: str, before: str, outputs: list[Any]) -> Iterator[str]:
    for run, params, output in world.database.rows(
        "SELECT id, params, output FROM holdfast_run WHERE instance_id = ? AND current = 1 AND status = 'complete'",
        fork,
    ):
        if before in world.database.repairs.copied.get(run, ()):
            yield f"the fork of {instance.id} has the result of step {before}, where it was cut"
        given = codec.plain(params)
        given = [edited(one, outputs) for one in given[0]] if instance.workflow in PROGRAMS else given
        result = codec.plain(output)
        sent = instance.sent | _stopped_children(world.database, instance)
        forked = replace(instance, params=given, results=[], sent=sent)
        result = result[-len(given) :] if instance.workflow in PROGRAMS else result
        if not _fits(forked, result):
            yield f"the fork of {instance.id} before {before} has an impossible result: {given} {result}"


def _stopped_children(database: WatchedDatabase, instance: Instance) -> set[str]:
    """Tokens of the children that the origin has cancelled or that ended with it. A fork receives these ends, too."""
    rows = database.rows("SELECT instance_id FROM holdfast_run WHERE status IN ('cancelled', 'terminated')")
    paths = [name.removeprefix(f"{instance.id}-").split("-") for (name,) in rows if name.startswith(f"{instance.id}-")]
    return {stopped_token(path[-1]) for path in paths}


def _messages(instance: Instance, received: list[list[int]], event: Callable[[int], str]) -> Iterator[str]:
    """Check that each message arrived once and in order. ``event`` returns the id of a message.

    A message that was sent while the run was errored was refused; all others also reach the run that a retry creates.
    """
    if instance.begins_again:
        return  # messages that were undelivered then stay with the old run
    numbers = [number for numbers_of_round in received for number in numbers_of_round]
    sent = range(1, max(numbers, default=0) + 1)
    refused = {n for n in sent if instance.control_requests & _REPAIRS and event(n) not in instance.acknowledged}
    if numbers != [n for n in sent if n not in refused or n in numbers]:
        yield f"{instance.id} did not receive each message once and in order: {received}"


def _has_removed_runs(database: WatchedDatabase, instance: Instance) -> bool:
    repairs = database.repairs
    return any(repairs.runs[run].instance == instance.id for run in repairs.removed)


def _lost_events(database: WatchedDatabase, instance: Instance) -> Iterator[str]:
    own = {run for run, created in database.repairs.runs.items() if created.instance == instance.id}
    if instance.begins_again and _has_removed_runs(database, instance):
        return  # the events of a run before a restart are removed with it
    rows = database.rows("SELECT run, dedup FROM holdfast_event WHERE dedup IS NOT NULL")
    stored = {dedup for run, dedup in rows if run in own}
    for lost in sorted(instance.acknowledged - stored):
        yield f"{lost} was sent to {instance.id} and acknowledged, and is not stored"
