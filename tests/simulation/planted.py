"""Bugs by name, which can be planted in the engine to test that the simulation finds them.

A bug is one or more patches: an attribute of the engine is replaced while the bug is planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.chain.chain import ChainProgram
from holdfast.client.repair import Repair
from holdfast.core.codec import plain
from holdfast.core.facts import FactState
from holdfast.core.model import Status, StepType
from holdfast.graph import node_rules
from holdfast.graph.node_rules import GraphUnits
from holdfast.graph.shape import UnitPosition
from holdfast.kernel import requests, step_info
from holdfast.kernel.attempt import current_attempt
from holdfast.kernel.repair import Resolution
from holdfast.runner import attempts, turn_writer
from holdfast.runner.attempts import RunningAttempt
from holdfast.runner.cache import MachineCache
from holdfast.runner.calls import CallsInFlight
from holdfast.runner.lease_keeper import LeaseKeeper
from holdfast.runner.machine_loader import MachineLoader
from holdfast.runner.prediction import PredictedTurn
from holdfast.runner.turn import Turn
from holdfast.runner.turn_input import TurnInput
from holdfast.runner.turn_runner import TurnRunner
from holdfast.runner.turn_writer import TurnWriter
from holdfast.runner.unit_turns import GraphRunTurn
from holdfast.store.protocol import Commit, Committed, Delivered, Prediction, RunRecord
from holdfast.store.sqlite import (
    SqliteStore,
    advance,
    claim,
    commit,
    control,
    create,
    ends,
    late,
    leases,
    mailbox,
    outbox,
    pausing,
    prune,
    send,
    successors,
    transfer,
)
from holdfast.store.sqlite import repair as repair_sql
from holdfast.store.sqlite.database import Database
from holdfast.workflow import differences, pending
from holdfast.workflow import repair as repair_rules
from holdfast.workflow.attempt_tracker import AttemptTracker
from holdfast.workflow.naming import StepNames
from holdfast.workflow.saga import Saga
from simulation import planted_bulk, planted_payloads, planted_schedules, planted_streams
from simulation.programs.names import NEW, OLD

_EARLY_MS = 150


class _Patch(NamedTuple):
    owner: Any
    """The module or class that has the attribute."""
    name: str
    replace: Callable[[Any], Any]
    """Returns the replacement of the attribute, given the original."""


def _no_op(_original: Any) -> Any:
    return lambda *_args, **_options: None


async def _async_no_op(*_args: Any, **_options: Any) -> None: ...


def _fence_without_owner(_original: Any) -> Any:
    def check_fence(exceptions: Any, task: Any) -> Any:
        found = exceptions.get(task[:2], commit._OWNED)
        return found if found is commit._OWNED or found.epoch is not None else None

    return check_fence


def _take_any_epoch(_original: Any) -> Any:
    def take(cache: Any, run: int, _epoch: int) -> Any:
        found = cache.pop(run)
        return None if found is None else found.machine

    return take


def _confirm_always(original: Any) -> Any:
    def confirm(turn: Any, sent: Any) -> bool:
        return original(turn, sent) or sent.claim is not None

    return confirm


def _begin_released_claim(original: Any) -> Any:
    def begin(runner: Any, *args: Any, **options: Any) -> Any:
        runner._unknown_claims.forget_released()
        return original(runner, *args, **options)

    return begin


def _with_early_clock(original: Any) -> Any:
    class EarlyClock:
        def __init__(self, tx: Any) -> None:
            self.connection, self.now = tx.connection, tx.now + _EARLY_MS

    return lambda tx, argument=None: original(EarlyClock(tx), argument)


def _statements_before_fence(original: Any) -> Any:
    def apply(tx: Any, turn_commit: Commit) -> Committed:
        statements = turn_commit.observed.statements
        if statements:
            tx.guard.run(tx.connection, statements)
            turn_commit = replace(turn_commit, observed=replace(turn_commit.observed, statements=()))
        committed: Committed = original(tx, turn_commit)
        return committed

    return apply


def _outbox_before_fence(original: Any) -> Any:
    def apply(tx: Any, commits: dict[int, Commit]) -> Any:
        for run, turn_commit in commits.items():
            tx.connection.executemany(
                commit._INSERT_OUTBOX, outbox.outbox_rows(run, turn_commit.observed.outbox, tx.now)
            )
        return original(
            tx,
            {
                run: replace(turn_commit, observed=replace(turn_commit.observed, outbox=()))
                for run, turn_commit in commits.items()
            },
        )

    return apply


def _calls_before_commit(original: Any) -> Any:
    async def run(turn: Any, rest: Any) -> Any:
        turn._start_calls(rest)
        return await original(turn, rest)

    return run


def _terminate_without_task(_original: Any) -> Any:
    def terminate(tx: Any, run: Any, *_: Any) -> None:
        if not run.status.terminal:
            sql = "UPDATE holdfast_run SET status = 'terminated', completed_at = ? WHERE id = ?"
            tx.connection.execute(sql, (tx.now, run.run))

    return terminate


def _terminate_without_write(_original: Any) -> Any:
    return lambda *_: None


def _send_without_id(original: Any) -> Any:
    return lambda tx, event, run: original(tx, replace(event, dedup=None), run)


def _without_epoch_increment(original: dict[str, str]) -> dict[str, str]:
    return {name: sql.replace("epoch = epoch + 1", "epoch = epoch") for name, sql in original.items()}


def _resume_without_task(original: dict[str, str]) -> dict[str, str]:
    return original | {"resume_task": "SELECT ?1, ?2, ?3, ?4"}


def _without_loss_mark(original: dict[str, str]) -> dict[str, str]:
    return {name: sql.replace("losses = ?6, lost = 1", "losses = ?6, lost = 0") for name, sql in original.items()}


def _without_timer_facts(original: Any) -> Any:
    def rows(run: int, facts: Sequence[Any]) -> Any:
        return original(run, [fact for fact in facts if not fact.key.startswith("z")])

    return rows


def _any_unit_owner(original: Any) -> Any:
    def holds(tx: Any, advances: Sequence[Any]) -> Any:
        found = original(tx, advances)
        tasks = {unit.task[:2]: unit.task for unit in advances}
        return {
            place: hold._replace(owner=tasks[place].owner, epoch=tasks[place].epoch) for place, hold in found.items()
        }

    return holds


def _claim_any_version(original: Any) -> Any:
    return lambda run, claimant: original(replace(run, pinned=False), claimant)


def _lanes_of_all_versions(original: Any) -> Any:
    def lanes(tx: Any, request: Any) -> Any:
        return original(tx, replace(request, version=NEW if request.version == OLD else OLD)) + original(tx, request)

    return lambda tx, request: sorted(set(lanes(tx, request)))


def _claim_without_pin(original: dict[str, str]) -> dict[str, str]:
    return original | {"set_pin": "SELECT ?1, ?2"}


def _task_without_pin(original: Any) -> Any:
    return lambda run, new, now: (*original(run, new, now)[:-1], "")


def _settle_as_delivered(original: Any) -> Any:
    return lambda tx, owner, outcome: original(tx, owner, Delivered(outcome.run, outcome.n))


def _read_only_if_signalled(original: Any) -> Any:
    async def look(turn_input: Any, topics: Any) -> None:
        if turn_input._events_waiting:
            await original(turn_input, topics)

    return look


def _pause_without_task(original: dict[str, str]) -> dict[str, str]:
    return original | {"task": "SELECT ?1"}


def _swap_answers(original: Any) -> Any:
    async def committed(store: Any, commits: Sequence[Commit]) -> Any:
        return list(reversed(await original(store, commits)))

    return committed


def _no_rows(_original: Any) -> Any:
    return lambda *_args: []


def _renew_with_worker_lease(original: dict[str, str]) -> dict[str, str]:
    return {name: sql.replace("coalesce(lease_ms, ?3)", "?3") for name, sql in original.items()}


def _without_timeout(original: Any) -> Any:
    return lambda chain, *args, **options: original(chain, *args, **options | {"timeout_ms": None})


def _only_failures(original: Any) -> Any:
    return lambda items: original([item for item in items if not item.ok] or items)


def _fail_with_first_item(original: Any) -> Any:
    """Fail the node when its first item fails, and drop the items that have not ended."""

    def failed(units: Any, task: Any, *outcome: Any) -> Any:
        place = UnitPosition.of(task.unit)
        if place.item is None:
            return original(units, task, *outcome)
        whole = original(units, task._replace(unit=place.node), *outcome)
        others = [UnitPosition(place.node, n).unit for n in range(3) if n != place.item]
        return replace(whole, task=task, drops=[*others, place.node])

    return failed


def _key_per_attempt(original: Any) -> Any:
    def key(run: Any, step_key: str) -> str:
        attempt = current_attempt.get()
        return f"{original(run, step_key)}.{attempt and attempt.number}"

    return key


def _any_run_is_terminated(original: dict[str, str]) -> dict[str, str]:
    return original | {"end_status": "SELECT 'terminated' WHERE ?1 NOTNULL"}


# --- bugs that the simulation found in the engine


def _defer_if_empty(original: Any) -> Any:
    return lambda writer, rest: rest.empty or original(writer, rest)


def _write_without_buffer(original: Any) -> Any:
    return lambda writer, commit, _buffered: original(writer, commit, [])


def _undo_until_cancelled(_original: Any) -> Any:
    async def undo_all(saga: Any, _error: BaseException) -> None:
        while saga._undos:
            _, undo = saga._undos.pop()
            with suppress(Exception):
                await undo()

    return undo_all


def _read_in_write_queue(_original: Any) -> Any:
    return lambda database, work, argument, *, short: database.submit(work, argument, inline=short, immediate=short)


def _clear_all_losses(original: dict[str, str]) -> dict[str, str]:
    return {name: sql.replace("losses = lost", "losses = 0") for name, sql in original.items()}


def _load_as_confirmed(original: Any) -> Any:
    async def load(loader: Any) -> Any:
        machine = await original(loader)
        loader._writer._unconfirmed = False
        return machine

    return load


def _take_events_until_now(original: Any) -> Any:
    def take_events(turn_input: Any, now: int) -> Any:
        turn_input._read_at = None
        return original(turn_input, now)

    return take_events


def _exits_of_the_claim(_original: Any) -> Any:
    async def look(keeper: Any) -> Any:
        return keeper.claim.mailbox_page

    return look


def _cancel_before_commit(original: Any) -> Any:
    def start_calls(turn: Any, rest: Any) -> None:
        turn._calls.cancel(rest.cancelled)
        original(turn, rest)

    return start_calls


def _cancel_running_only(_original: Any) -> Any:
    def cancel(calls: Any, keys: Iterable[str]) -> None:
        for key in keys:
            running = calls._running.pop(key, None)
            if running is not None:
                running.cancel()

    return cancel


def _defer_until_suspend(original: Any) -> Any:
    def try_defer(writer: Any, decision: Any) -> bool:
        must_write = writer._unconfirmed or writer._warnings or decision.transactional or writer.counted_losses
        if writer._buffering and not must_write and not decision.following.operations:
            writer._buffer_decision(decision)
            return True
        return bool(original(writer, decision))

    return try_defer


def _add_buffered_only(_original: Any) -> Any:
    def add_refused(writer: Any, commit: Commit, buffered: Any) -> None:
        results = [fact for entry in buffered for fact in entry.decision.observed.facts]
        writer._add_late(results, commit.observed.logs)

    return add_refused


def _cancel_as_workflow(original: Any) -> Any:
    def ask(tx: Any, run: Any, start_event: Any, deadline_ms: int | None, affected: Any) -> None:
        original(tx, replace(run, kind="workflow"), start_event, deadline_ms, affected)

    return ask


def _ids_per_run(original: dict[str, str]) -> dict[str, str]:
    return {
        name: sql.replace("iif(?7, coalesce(line, id), NULL)", "iif(?7, NULL, NULL)") for name, sql in original.items()
    }


# --- bugs of repair and deletion


def _keep_all_facts(_original: Any) -> Any:
    return lambda fact, _done, dropped: fact.state != FactState.PLAN and fact.key not in dropped


def _drop_last_result(original: Any) -> Any:
    def survives(fact: Any, done: set[str], dropped: set[str]) -> bool:
        return bool(original(fact, done, dropped)) and fact.key[:1] not in ("p", "t")

    return survives


def _without_failed_children(original: Any) -> Any:
    async def repair_children(repair: Any, pids: Sequence[str], reason: str | None) -> Any:
        return await original(repair, pids[1:], reason)

    return repair_children


def _statement(name: str, sql: str) -> Callable[[dict[str, str]], dict[str, str]]:
    """Replace a statement by one that has the same number of parameters and does nothing."""
    return lambda original: original | {name: sql}


def _keep_the_step(original: Any) -> Any:
    return lambda fact, done, cut, began, _before: original(fact, done, cut + 1, began, "")


def _delete_any_status(original: Any) -> Any:
    return lambda tx, run: original(tx, replace(run, status=Status.COMPLETE))


def _without_parents(original: dict[str, str]) -> dict[str, str]:
    return original | {"run": original["run"].replace("p.completed_at IS NULL", "p.completed_at < 0")}


def _fork_moves_events(original: Any) -> Any:
    def insert(tx: Any, source: Any, request: Any, id: str) -> Any:
        new = original(tx, source, request, id)
        tx.connection.execute(repair_sql._SQL["move_undelivered"], (source.run, new))
        return new

    return insert


def _without_loss(original: Any) -> Any:
    def stored(table: Any, row: Any) -> Any:
        return tuple(
            False if column.name == "lost" else value
            for column, value in zip(table.columns, original(table, row), strict=True)
        )

    return stored


def _all_waits(_original: Any) -> Any:
    """Take waits that have ended for open ones."""
    return lambda facts: [fact for fact in facts if fact.kind == StepType.WAIT and fact.state == FactState.START]


def _retry_in_place_number(_original: Any) -> Any:
    return property(lambda run: run.number)


def _resolve_without_result(_original: Any) -> Any:
    return lambda resolution, fact: fact


BUGS: dict[str, Sequence[_Patch]] = {
    "no_fence": [_Patch(commit, "_check_fence", _fence_without_owner)],
    "losses_not_counted": [_Patch(AttemptTracker, "count_losses", _no_op)],
    "loss_not_reported": [_Patch(leases, "_SQL", _without_loss_mark)],
    "stale_cache": [_Patch(MachineCache, "take", _take_any_epoch)],
    "prediction_not_compared": [_Patch(Prediction, "holds_for", lambda _original: lambda *_: True)],
    "unconfirmed_prediction_continued": [_Patch(PredictedTurn, "confirm", _confirm_always)],
    "event_consumed_twice": [_Patch(commit, "deliver", _no_op)],
    "events_not_moved_to_successor": [_Patch(mailbox, "move", _no_op)],
    "wake_up_lost_at_release": [_Patch(commit, "matches_topics", lambda _original: lambda *_: False)],
    "not_due_after_resume": [_Patch(control, "_SQL", _resume_without_task)],
    "unknown_claims_not_released": [_Patch(LeaseKeeper, "_release_unknown_claims", lambda _original: _async_no_op)],
    "late_claim_begun": [_Patch(TurnRunner, "begin", _begin_released_claim)],
    "reaped_too_early": [_Patch(leases, "expired", _with_early_clock)],
    "never_reaped": [_Patch(leases, "reap", lambda _original: lambda *_: [])],
    "terminate_not_written": [_Patch(control, "terminate", _terminate_without_write)],
    "task_kept_after_terminate": [_Patch(control, "terminate", _terminate_without_task)],
    "statements_before_fence": [_Patch(commit, "_apply_alone", _statements_before_fence)],
    "event_ids_ignored": [_Patch(send, "_send", _send_without_id)],
    "calls_before_commit": [_Patch(Turn, "_commit", _calls_before_commit)],
    "epoch_not_incremented": [_Patch(claim, "_SQL", _without_epoch_increment)],
    "unit_without_fence": [_Patch(advance, "_read_ownerships", _any_unit_owner)],
    "starts_not_written": [_Patch(advance, "write_starts", _no_op), _Patch(claim, "write_starts", _no_op)],
    "outbox_not_written": [_Patch(commit, "outbox_rows", _no_rows)],
    "outbox_before_fence": [_Patch(commit, "_apply_together", _outbox_before_fence)],
    "failed_delivery_marked_delivered": [_Patch(outbox, "_settle", _settle_as_delivered)],
    "deadline_before_mailbox_read": [_Patch(TurnInput, "read_events", _read_only_if_signalled)],
    "paused_stays_due": [_Patch(pausing, "_SQL", _pause_without_task)],
    "commit_answers_swapped": [_Patch(SqliteStore, "commit", _swap_answers)],
    "operation_results_not_written": [_Patch(commit, "result_facts", _no_rows)],
    "timers_not_written": [_Patch(commit, "fact_rows", _without_timer_facts)],
    "step_lease_not_set": [_Patch(Turn, "_set_lease", lambda _original: _async_no_op)],
    "step_lease_not_renewed": [_Patch(leases, "_SQL", _renew_with_worker_lease)],
    "step_lease_without_heartbeats": [
        _Patch(LeaseKeeper, "leases", lambda _original: lambda keeper: [keeper.lease_ms])
    ],
    "step_timeout_ignored": [_Patch(ChainProgram, "add", _without_timeout)],
    "items_dropped_if_one_fails": [_Patch(node_rules, "collected", _only_failures)],
    "map_fails_with_its_first_item": [_Patch(GraphUnits, "_fail_permanently", _fail_with_first_item)],
    "failed_items_left_out_of_the_error": [
        _Patch(node_rules, "error_of", lambda original: lambda items: original(items[:2]))
    ],
    "declared_events_not_checked": [
        _Patch(requests, "checked_payload", lambda _original: lambda _workflow, _event, payload: payload)
    ],
    "declared_events_not_decoded": [
        _Patch(pending, "read_payload", lambda _original: lambda _type, data, _: plain(data))
    ],
    "idempotency_key_per_attempt": [_Patch(step_info, "idempotency_key", _key_per_attempt)],
    "progress_lost_with_a_failure": [_Patch(RunningAttempt, "_keep_heartbeat", _no_op)],
    "progress_lost_with_retry_step": [_Patch(attempts, "ReportedFailure", lambda _original: ())],
    "buffer_lost_at_suspend": [_Patch(turn_writer, "_merged", lambda _original: lambda _buffer, last: last)],
    "transaction_overtakes_record": [_Patch(CallsInFlight, "records_written", lambda _original: _async_no_op)],
    "late_results_not_added": [_Patch(TurnWriter, "_add_late", _no_op)],
    "late_results_for_any_run": [_Patch(late, "_SQL", _any_run_is_terminated)],
    "retry_before_failure_is_written": [_Patch(TurnWriter, "try_defer", _defer_if_empty)],
    "outcomes_lost_with_transaction": [_Patch(TurnWriter, "_write_transaction", _write_without_buffer)],
    "operation_results_not_awaited": [_Patch(TurnWriter, "has_operations", lambda _original: False)],
    "undo_interrupted_by_cancel": [_Patch(Saga, "_undo_all", _undo_until_cancelled)],
    "late_load_not_confirmed": [_Patch(MachineLoader, "load", _load_as_confirmed)],
    "loss_cleared_by_resume": [_Patch(control, "_SQL", _clear_all_losses)],
    "deadline_during_mailbox_read": [_Patch(TurnInput, "take_events", _take_events_until_now)],
    "event_ids_per_run": [_Patch(successors, "_SQL", _ids_per_run)],
    "renamed_steps_not_found": [_Patch(StepNames, "aliases", lambda _original: lambda *_: {})],
    "exits_not_read": [_Patch(GraphRunTurn, "_read_exits", _exits_of_the_claim)],
    "graph_cancelled_by_event": [_Patch(control, "request_cancel", _cancel_as_workflow)],
    "tombstone_not_written": [_Patch(ends, "_write_tombstone", _no_op)],
    "calls_cancelled_before_commit": [_Patch(Turn, "_start_calls", _cancel_before_commit)],
    "cancelled_retry_called": [_Patch(CallsInFlight, "cancel", _cancel_running_only)],
    "outcome_lost_by_pause": [
        _Patch(CallsInFlight, "in_flight", lambda _original: property(lambda calls: calls.running))
    ],
    "operations_kept_in_buffer": [_Patch(TurnWriter, "try_defer", _defer_until_suspend)],
    "last_results_not_added": [_Patch(TurnWriter, "_add_refused", _add_buffered_only)],
    "reads_wait_for_transaction": [_Patch(Database, "read", _read_in_write_queue)],
    "event_claims_any_version": [_Patch(send, "_may_claim", _claim_any_version)],
    "lanes_of_all_versions": [_Patch(claim, "_lanes", _lanes_of_all_versions)],
    "pin_not_set_by_claim": [_Patch(claim, "_SQL", _claim_without_pin)],
    "pin_not_set_by_start": [_Patch(create, "_task_row", _task_without_pin)],
    "attempts_kept_by_retry": [_Patch(repair_rules, "_survives", _keep_all_facts)],
    "results_lost_by_retry": [_Patch(repair_rules, "_survives", _drop_last_result)],
    "children_not_repaired": [_Patch(Repair, "_repair_children", _without_failed_children)],
    "events_not_moved_by_retry": [_Patch(repair_sql, "_SQL", _statement("move_undelivered", "SELECT ?1, ?2"))],
    "events_not_copied": [_Patch(repair_sql, "_SQL", _statement("copy_events", "SELECT ?1, ?2, ?3"))],
    "watches_not_set_by_retry": [_Patch(repair_sql, "_watch", _no_op)],
    "forked_step_kept": [_Patch(repair_rules, "_is_kept", _keep_the_step)],
    "outputs_of_fork_ignored": [_Patch(repair_rules, "replaced", lambda _original: lambda facts, *_: facts)],
    "events_moved_by_fork": [_Patch(repair_sql, "_insert_fork", _fork_moves_events)],
    "idempotency_key_changed_by_retry": [_Patch(RunRecord, "key_number", _retry_in_place_number)],
    "resolution_ignored": [_Patch(Resolution, "result", _resolve_without_result)],
    "open_run_deleted": [_Patch(repair_sql, "delete", _delete_any_status)],
    "facts_left_by_delete": [_Patch(repair_sql, "_SQL", _statement("delete_facts", "SELECT ?1"))],
    "facts_left_by_prune": [_Patch(prune, "_SQL", _statement("delete_facts", "SELECT ?1"))],
    "children_of_open_runs_pruned": [_Patch(prune, "_SQL", _without_parents)],
    "pin_kept_by_move": [_Patch(control, "_SQL", _statement("move_tasks", "SELECT ?1, ?2, ?3"))],
    "position_of_move_not_written": [_Patch(transfer, "_SQL", _statement("set_position", "SELECT ?1"))],
    "ids_used_again_after_move": [_Patch(transfer, "_SQL", _statement("set_sequence", "SELECT ?1"))],
    "outbox_not_due_after_move": [_Patch(transfer, "_SQL", _statement("finish_outbox", "SELECT 1"))],
    "loss_forgotten_by_move": [_Patch(transfer, "_stored", _without_loss)],
    "results_unused_for_check": [_Patch(differences, "_is_used", lambda _original: lambda *_: False)],
    "ended_waits_open_for_check": [_Patch(differences, "_open_waits", _all_waits)],
} | {
    bug: [_Patch(*patch) for patch in patches]
    for bug, patches in (
        planted_bulk.BUGS | planted_payloads.BUGS | planted_schedules.BUGS | planted_streams.BUGS
    ).items()
}


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Plant a bug for the time of the context."""
    originals = [(patch, getattr(patch.owner, patch.name)) for patch in BUGS[bug]]
    for patch, original in originals:
        replacement = patch.replace(original)
        if isinstance(original, dict) and (replacement == original or replacement.keys() != original.keys()):
            raise ValueError(f"{bug} changes no statement of {patch.owner.__name__}.{patch.name}")
        setattr(patch.owner, patch.name, replacement)
    try:
        yield
    finally:
        for patch, original in originals:
            setattr(patch.owner, patch.name, original)
