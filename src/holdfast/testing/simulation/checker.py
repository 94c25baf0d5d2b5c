"""Checks the promises at the end of a simulation, from the stored rows and the recorded effects of steps.

Promises that must hold at every moment are checked in ``database``, as rows are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.core.outbound import outbound_id
from holdfast.store.protocol import FactState
from holdfast.testing.simulation import code, families, leased, models, sieve
from holdfast.testing.simulation.code import BUFFERED, GRAPH, PROGRAMS, Effect
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.families import FAILING_NODE, FAMILY, family_fails, fits_family
from holdfast.testing.simulation.greeting import renamed_step_repeats
from holdfast.testing.simulation.programs import (
    INVALID_PARCELS,
    PARCEL,
    PEER_TOPIC,
    certain_parts,
    fits,
    messages,
    parcel,
    parts,
)
from holdfast.testing.simulation.step_infos import step_info_failures
from holdfast.testing.simulation.workload import Instance
from holdfast.testing.simulation.world import World

_ENDS = {"cancelled": "cancel", "terminated": "terminate"}
"""Statuses that only a control request causes, with the verb of the request."""
_MAX_CLOCK_ERROR_MS = 30
"""Maximum error of a worker's estimate of the store's time."""


def broken_promises(world: World) -> Iterator[str]:
    for instance in world.workload.instances.values():
        yield from _instance(world, instance)
    yield from _effects(world)
    yield from _transactions(world.database, world)
    yield from _outbox(world)
    yield from _deadlines(world.database)
    yield from _peer_messages(world.database)
    yield from _sagas(world)
    yield from renamed_step_repeats(world.database)
    rolled_back = _keys_of(world, "live")
    kept = world.progress_kept and not rolled_back  # heartbeats are stored later while a live transaction is open
    yield from step_info_failures(
        world.call_infos, world.database, rolled_back, progress_kept=kept, uncounted=(BUFFERED,)
    )
    yield from world.external.overtime
    if world.late_results_kept:
        yield from world.database.results.lost(world.living_workers)
    yield from _invalid_events(world)
    yield from sieve.lost_items(world.database)
    yield from _tombstones(world.database)
    if world.database.timed_out_transactions:  # no fault lasts as long as the timeout
        yield "the transaction of a step timed out because the turn that had to end it was waiting for it"
    for node in world.nodes.values():
        if node.busy:
            yield f"{node.name} has no work left, and its worker still holds turns, slots or graph runs"


def _instance(world: World, instance: Instance) -> Iterator[str]:
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
    elif status in _ENDS and _ENDS[status] in instance.control_requests:
        pass
    elif status == "errored" and b"VersionUnsupportedError" in error and world.deployed:
        pass  # a worker with the previous version of the code claimed the run
    elif status == "errored" and _may_fail(instance, error):
        pass
    else:
        yield f"{instance.id} is {status} without a request or an error that explains it: {error!r} {note!r}"
    if instance.terminated and status != "terminated" and "restart" not in instance.control_requests:
        yield f"the termination of {instance.id} was acknowledged, and its status is {status}"
    yield from _cancellation(instance, status)
    yield from _lost_events(database, instance)
    if status == "complete" and instance.workflow == models.CHAIN:
        [(outbound,)] = database.rows(
            "SELECT count(*) FROM holdfast_outbox AS o JOIN holdfast_run AS r ON r.id = o.run "
            "WHERE r.instance_id = ? AND r.current = 1",
            instance.id,
        )
        if outbound != len(instance.params):
            yield f"the {len(instance.params)} steps of {instance.id} wrote {outbound} outbound events"


def _may_fail(instance: Instance, error: bytes) -> bool:
    match instance.workflow:
        case families.FAMILY:
            return family_fails(instance.params) and FAILING_NODE.encode() in error
        case sieve.SIEVE:
            return sieve.fits_sieve_error(instance.params, Failure.decode(error).message)
        case _:
            return False


def _cancellation(instance: Instance, status: str) -> Iterator[str]:
    """Check that a graph whose cancellation was acknowledged is cancelled. A workflow may end in another way."""
    if instance.workflow not in (GRAPH, FAMILY, sieve.SIEVE) or not instance.cancelled:
        return
    if status != "cancelled" and not instance.control_requests & {"restart", "terminate"}:
        yield f"the cancellation of {instance.id} was acknowledged, and its status is {status}"


def _result(instance: Instance, result: Any) -> Iterator[str]:
    if not _fits(instance, result):
        yield f"{instance.id} has an impossible result: {instance.params} gave {result}"
    elif instance.workflow in PROGRAMS:
        yield from _messages(instance, messages(instance.params, result))
        yield from _messages(instance, messages(instance.params, result, "parcels"))
    for received in instance.results:
        if received != result and "restart" not in instance.control_requests:
            yield f"a client received {received} as the result of {instance.id}, which returned {result}"


def _fits(instance: Instance, result: Any) -> bool:
    match instance.workflow:
        case models.CHAIN:
            return models.fits_chain(instance.params, result, instance.sent)
        case sieve.SIEVE:
            return sieve.fits_sieve(instance.params, result)
        case leased.LEASED:
            return leased.fits_leased(instance.params, result)
        case code.GRAPH:
            return models.fits_graph(instance.params, result)
        case families.FAMILY:
            return fits_family(instance.params, result)
        case _:
            rounds = instance.params
            return len(result) == len(rounds) and all(map(fits, rounds, result, repeat(instance.sent)))


def _messages(instance: Instance, received: list[list[int]]) -> Iterator[str]:
    if "restart" in instance.control_requests:
        return  # messages that were undelivered at the restart stay with the old run
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


def _effects(world: World) -> Iterator[str]:
    """Check that every call of a step is counted as an attempt.

    These calls are not counted: calls that a worker interrupts when it shuts down; calls whose live transaction was
    rolled back (``_transactions`` checks the rows of such steps instead). Steps of a workflow with ``persist="task"``
    are called again if their worker dies before it writes its buffer, so they are not checked.
    """
    # ``attempts`` in the result of a chain's step is the number of failed attempts before the result.
    rolled_back = _keys_of(world, "live")
    counted = Counter(
        effect for effect, process in world.calls if not process.shut_down and effect[2] not in rolled_back
    )
    sql = (
        "SELECT f.attempts + (r.kind = 'chain') FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE r.instance_id = ? AND r.number = ? AND f.state = ? AND f.key = ? AND r.workflow <> ?"
    )
    for (instance, number, key), called in counted.items():
        if number == models.ANY_RUN:
            yield from _starts(world.database, instance, key, called)
            continue
        rows = world.database.rows(sql, instance, number, int(FactState.RESULT), key, BUFFERED)
        for (attempts,) in rows:
            if called > attempts:
                yield f"step {key} of {instance} (run {number}) was called {called} times in {attempts} attempts"


def _transactions(database: SimulatedDatabase, world: World) -> Iterator[str]:
    """Check that a step's transaction wrote one row if the step has a result, and none otherwise."""
    written = {
        (instance, number, key): count
        for instance, number, key, count in database.rows(
            "SELECT instance, number, key, count(*) FROM effect GROUP BY instance, number, key ORDER BY 1, 2, 3"
        )
    }
    keys = _keys_of(world, "tx", "live")
    for instance, number, key, ok in database.rows(
        "SELECT r.instance_id, r.number, f.key, f.ok FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE f.state = 0 ORDER BY 1, 2, 3"
    ):
        if key in keys and written.pop((instance, number, key), 0) != ok:
            yield f"step {key} of {instance} (run {number}) has a result, and its transaction did not write one row"
    for (instance, number, key), count in written.items():
        yield f"step {key} of {instance} (run {number}) has no result, and its transaction wrote {count} rows"


def _starts(database: SimulatedDatabase, instance: str, node: str, called: int) -> Iterator[str]:
    """Check that a graph has a START fact for each call of a node.

    The graph is found by its first parameter, because the engine chooses the id of an instance that a node runs.
    """
    [(starts,)] = database.rows(
        "SELECT count(*) FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE r.kind = 'graph' AND CAST(r.params AS TEXT) ->> 0 = ? AND f.state = ? AND f.key = ?",
        instance,
        int(FactState.START),
        node,
    )
    if called > starts:
        yield f"node {node} of {instance} was called {called} times, and started {starts} times"


def _sagas(world: World) -> Iterator[str]:
    """Check that sagas undo their steps in reverse order, and all steps if the run completed."""
    undone: dict[Effect, list[int]] = {}
    for saga, step in dict.fromkeys(world.external.undone):
        undone.setdefault(saga, []).append(step)
    for (name, number, key), steps in undone.items():
        [(status,)] = world.database.rows(
            "SELECT status FROM holdfast_run WHERE instance_id = ? AND number = ?", name, number
        )
        if steps != sorted(steps, reverse=True) or (status == "complete" and steps[-1] != 0):
            yield f"saga {key} of {name} (run {number}) is {status}, and undid {steps}"
    for instance in world.workload.instances.values():
        if instance.workflow in PROGRAMS and not instance.control_requests and instance.results:
            for number, program in enumerate(instance.params):
                for _, key, n, fails in (part for part in certain_parts(program) if part[0] == "saga"):
                    if fails and len(undone.get((instance.id, number, key), ())) != n:
                        yield f"saga {key} of {instance.id} (run {number}) failed, and was not undone"


def _tombstones(database: SimulatedDatabase) -> Iterator[str]:
    """Check that a graph has one TOMBSTONE fact if it was terminated or cancelled, and none otherwise."""
    for pid, status, stones in database.rows(
        "SELECT r.workflow || '/' || r.instance_id, r.status, count(f.run) FROM holdfast_run AS r "
        "LEFT JOIN holdfast_fact AS f ON f.run = r.id AND f.state = ? WHERE r.kind = 'graph' GROUP BY r.id "
        "HAVING count(f.run) <> (r.status IN ('terminated', 'cancelled')) ORDER BY r.id",
        int(FactState.TOMBSTONE),
    ):
        yield f"{pid} is {status}, and has {stones} tombstones"


def _peer_messages(database: SimulatedDatabase) -> Iterator[str]:
    """Check that a message between runs is stored once, also if the sending worker died."""
    for payload, times in database.rows(
        "SELECT payload, count(*) FROM holdfast_event WHERE type = ? GROUP BY payload HAVING count(*) > 1 ORDER BY 1",
        PEER_TOPIC,
    ):
        yield f"the message {payload!r} is stored {times} times"


def _invalid_events(world: World) -> Iterator[str]:
    """Check that no event whose payload does not fit its declared type is acknowledged or stored."""
    for instance in world.workload.instances.values():
        for payload in instance.accepted_invalid:
            yield f"{payload} was sent to {instance.id} and acknowledged, and does not fit its declared type"
    for name, payload in world.database.rows(
        "SELECT r.instance_id, e.payload FROM holdfast_event AS e JOIN holdfast_run AS r ON r.id = e.run "
        "WHERE e.type = ? ORDER BY r.id, e.n",
        PARCEL,
    ):
        decoded = codec.plain(payload)
        if decoded in INVALID_PARCELS or decoded != parcel(decoded["number"]):
            yield f"{decoded} is stored as an event of {name}, and does not fit its declared type"


def _deadlines(database: SimulatedDatabase) -> Iterator[str]:
    """Check that no wait timed out while an event of its type was undelivered.

    Workers' estimates of the store's time have a small error, which is tolerated.
    """
    for instance, key, type_ in database.rows(
        "SELECT DISTINCT r.instance_id, f.key, e.type FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "JOIN holdfast_event AS e ON e.run = f.run AND e.type = f.event_type "
        "WHERE f.state = ? AND f.kind = 'waitForEvent' AND f.event IS NULL AND e.created_at < f.wake_at - ? "
        "AND (e.delivered_at IS NULL OR e.delivered_at > f.at) ORDER BY 1, 2",
        int(FactState.RESULT),
        _MAX_CLOCK_ERROR_MS,
    ):
        yield f"{key} of {instance} timed out although an undelivered {type_} event was stored"


def _outbox(world: World) -> Iterator[str]:
    """Check that each outbound event arrives at least once, in the order of its run, and no unwritten event arrives."""
    written: dict[int, list[str]] = {}
    for run, n, workflow, instance, number in world.database.rows(
        "SELECT o.run, o.n, r.workflow, r.instance_id, r.number FROM holdfast_outbox AS o "
        "JOIN holdfast_run AS r ON r.id = o.run ORDER BY o.run, o.n"
    ):
        written.setdefault(run, []).append(outbound_id(workflow, instance, number, n))
    arrived = [*dict.fromkeys(world.external.delivered)]
    for ids in written.values():
        if [id_ for id_ in arrived if id_ in ids] != ids:
            yield f"the outbound events {ids} were written, and {[id_ for id_ in arrived if id_ in ids]} arrived"
    for unknown in set(arrived).difference(*written.values()):
        yield f"the outbound event {unknown} arrived, and was never written"


def _keys_of(world: World, *kinds: str) -> frozenset[str]:
    """Keys of the steps of these kinds in all programs."""
    programs = [program for instance in world.workload.instances.values() for program in instance.programs]
    return frozenset(part[1] for program in programs for part in parts(program) if part[0] in kinds)
