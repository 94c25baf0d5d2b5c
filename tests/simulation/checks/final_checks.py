"""Checks the promises at the end of a simulation, from the stored rows and the recorded effects of steps.

Promises that must hold at every moment are checked in ``database.py``, as rows are written.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core import codec
from holdfast.core.outbound import outbound_id
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.database import SimulatedDatabase
from simulation.checks.database import WatchedDatabase
from simulation.checks.instances import fork_failures, instance_failures
from simulation.checks.schedules import schedule_failures
from simulation.checks.step_effects import effect_failures, step_keys
from simulation.checks.step_infos import step_info_failures
from simulation.checks.streams import stream_failures
from simulation.payloads import missing_blobs
from simulation.programs.failing_items import lost_items
from simulation.programs.names import BUFFERED_PROGRAM, CHAIN
from simulation.programs.program import INVALID_PARCELS, PARCEL, PEER_TOPIC, parcel
from simulation.programs.renamed_step import renamed_step_repeats
from simulation.system.world import World

_MAX_CLOCK_ERROR_MS = 30
"""Maximum error of a worker's estimate of the store's time."""


def broken_promises(world: World) -> Iterator[str]:
    """Report the promises that a simulation has broken, as text."""
    for instance in world.workload.instances.values():
        yield from instance_failures(world, instance)
    yield from effect_failures(world)
    yield from _outbox(world)
    yield from stream_failures(world.database)
    yield from _deadlines(world.database)
    yield from _peer_messages(world.database)
    yield from fork_failures(world)
    yield from schedule_failures(world)
    yield from renamed_step_repeats(world.database)
    rolled_back = step_keys(world, "live")
    kept = world.progress_kept and not rolled_back  # heartbeats are stored later while a live transaction is open
    repairs = world.database.repairs
    yield from step_info_failures(
        [info for info in world.steps.infos if not repairs.is_removed(info.step.instance)],
        world.database,
        rolled_back,
        progress_kept=kept,
        uncounted=(BUFFERED_PROGRAM,),
        key_numbers=repairs.key_numbers,
    )
    yield from world.external.overtime
    if world.late_results_kept:
        yield from world.database.results.lost(world.living_workers, repairs.removed)
    yield from _invalid_events(world)
    yield from lost_items(world.database)
    yield from _tombstones(world.database)
    yield from missing_blobs(world.database.rows)
    if world.database.timed_out_transactions:  # no fault lasts as long as the timeout
        yield "the transaction of a step timed out because the turn that had to end it was waiting for it"
    for node in world.nodes.values():
        if node.busy:
            yield f"{node.name} has no work left, and its worker still holds turns, slots or graph runs"


def _tombstones(database: SimulatedDatabase) -> Iterator[str]:
    """Check that a graph has one TOMBSTONE fact if it was terminated or cancelled, and none otherwise."""
    for pid, status, stones in database.rows(
        "SELECT r.workflow || '/' || r.instance_id, r.status, count(f.run) FROM holdfast_run AS r "
        "LEFT JOIN holdfast_fact AS f ON f.run = r.id AND f.state = ? WHERE r.kind = 'graph' GROUP BY r.id "
        "HAVING count(f.run) <> (r.status IN ('terminated', 'cancelled')) ORDER BY r.id",
        int(FactState.TOMBSTONE),
    ):
        yield f"{pid} is {status}, and has {stones} tombstones"


def _peer_messages(database: WatchedDatabase) -> Iterator[str]:
    """Check that a message between runs is stored once, also if the sending worker died."""
    for payload, times in database.rows(
        "SELECT payload, count(*) FROM holdfast_event WHERE type = ? GROUP BY payload HAVING count(*) > 1 ORDER BY 1",
        PEER_TOPIC,
    ):
        if not database.repairs.is_removed(codec.plain(payload)):
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
    repairs = world.database.repairs
    removed = {outbound_id(CHAIN, *repairs.runs[run][:2], n) for run, n in repairs.removed_outbox}
    for unknown in set(arrived).difference(removed, *written.values()):
        yield f"the outbound event {unknown} arrived, and was never written"
