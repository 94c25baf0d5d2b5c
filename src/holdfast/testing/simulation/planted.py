"""Bugs to plant, by name: proof that the simulation finds what it is there for.

Each puts something wrong in the place of something right, while it is planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.chain.chain import ChainProgram
from holdfast.core.codec import plain
from holdfast.graph import node_rules
from holdfast.graph.node_rules import GraphUnits
from holdfast.graph.shape import UnitPosition
from holdfast.kernel import requests, step_info
from holdfast.kernel.attempt import current_attempt
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
from holdfast.store.protocol import AffectedRuns, Commit, Committed, ControlResult, Delivered, Prediction
from holdfast.store.sqlite import (
    SqliteStore,
    advance,
    claim,
    commit,
    control,
    ends,
    late,
    leases,
    mailbox,
    outbox,
    send,
    successors,
)
from holdfast.store.sqlite.connection import Database
from holdfast.store.sqlite.reads import find_current
from holdfast.workflow import pending
from holdfast.workflow.attempt_tracker import AttemptTracker
from holdfast.workflow.naming import StepNames
from holdfast.workflow.saga import Saga

_EARLY_MS = 150


class _Patch(NamedTuple):
    where: Any
    name: str
    wrong: Callable[[Any], Any]
    """Makes the wrong thing, given the right one."""


def _nothing(_right: Any) -> Any:
    return lambda *_args, **_options: None


async def _wait_for_nothing(*_args: Any, **_options: Any) -> None: ...


def _any_fence(_right: Any) -> Any:
    return lambda holds, task: holds.get(task[:2])


def _any_epoch(_right: Any) -> Any:
    def take(cache: Any, run: int, _epoch: int) -> Any:
        found = cache.pop(run)
        return None if found is None else found.machine

    return take


def _in_any_case(right: Any) -> Any:
    def confirm(turn: Any, sent: Any) -> bool:
        return right(turn, sent) or sent.claim is not None

    return confirm


def _forgetful(right: Any) -> Any:
    def begin(runner: Any, *args: Any, **options: Any) -> Any:
        runner._unknown_claims.forget_released()
        return right(runner, *args, **options)

    return begin


def _early(right: Any) -> Any:
    class Tomorrow:
        def __init__(self, tx: Any) -> None:
            self.connection, self.now = tx.connection, tx.now + _EARLY_MS

    return lambda tx, argument=None: right(Tomorrow(tx), argument)


def _statements_first(right: Any) -> Any:
    def apply(tx: Any, one: Commit) -> Committed:
        statements = one.observed.statements
        if statements:
            tx.guard.run(tx.connection, statements)
            one = replace(one, observed=replace(one.observed, statements=()))
        done: Committed = right(tx, one)
        return done

    return apply


def _outbox_first(right: Any) -> Any:
    def apply(tx: Any, commits: dict[int, Commit]) -> Any:
        for run, one in commits.items():
            tx.connection.executemany(commit._INSERT_OUTBOX, outbox.outbox_rows(run, one.observed.outbox, tx.now))
        return right(tx, {run: replace(one, observed=replace(one.observed, outbox=())) for run, one in commits.items()})

    return apply


def _calls_first(right: Any) -> Any:
    async def run(turn: Any, rest: Any) -> Any:
        turn._start_calls(rest)
        return await right(turn, rest)

    return run


def _no_task_dropped(_right: Any) -> Any:
    def terminate(tx: Any, ending: Any) -> Any:
        found = find_current(tx, *ending.target)
        if found is not None and not found.status.terminal:
            sql = "UPDATE holdfast_run SET status = 'terminated', completed_at = ? WHERE id = ?"
            tx.connection.execute(sql, (tx.now, found.run))
        return ControlResult(found, AffectedRuns())

    return terminate


def _only_said(_right: Any) -> Any:
    return lambda tx, ending: ControlResult(find_current(tx, *ending.target), AffectedRuns())


def _without_keys(right: Any) -> Any:
    return lambda tx, event: right(tx, replace(event, dedup=None))


def _same_epoch(right: dict[str, str]) -> dict[str, str]:
    return {name: sql.replace("epoch = epoch + 1", "epoch = epoch") for name, sql in right.items()}


def _only_the_row(right: dict[str, str]) -> dict[str, str]:
    return right | {"resume_task": "SELECT ?1, ?2, ?3, ?4"}


def _kept_for_ever(right: dict[str, str]) -> dict[str, str]:
    return {name: sql.replace("losses = ?6, lost = 1", "losses = ?6, lost = 0") for name, sql in right.items()}


def _result_thrown_away(right: Any) -> Any:
    def rows(run: int, facts: Sequence[Any]) -> Any:
        return right(run, [fact for fact in facts if not fact.key.startswith("z")])

    return rows


def _any_unit(right: Any) -> Any:
    def holds(tx: Any, advances: Sequence[Any]) -> Any:
        found = right(tx, advances)
        asked = {one.task[:2]: one.task for one in advances}
        return {
            place: hold._replace(owner=asked[place].owner, epoch=asked[place].epoch) for place, hold in found.items()
        }

    return holds


def _as_delivered(right: Any) -> Any:
    return lambda tx, owner, one: right(tx, owner, Delivered(one.run, one.n))


def _no_second_look(right: Any) -> Any:
    async def look(turn_input: Any, topics: Any) -> None:
        if turn_input._events_waiting:
            await right(turn_input, topics)

    return look


def _still_due(right: dict[str, str]) -> dict[str, str]:
    return right | {"task": "SELECT ?1"}


def _mixed_up(right: Any) -> Any:
    async def committed(store: Any, commits: Sequence[Commit]) -> Any:
        return list(reversed(await right(store, commits)))

    return committed


def _no_rows(_right: Any) -> Any:
    return lambda *_args: []


def _lease_of_the_worker(right: dict[str, str]) -> dict[str, str]:
    return {name: sql.replace("coalesce(lease_ms, ?3)", "?3") for name, sql in right.items()}


def _without_timeout(right: Any) -> Any:
    return lambda chain, *args, **options: right(chain, *args, **options | {"timeout_ms": None})


def _only_failures(right: Any) -> Any:
    return lambda items: right([item for item in items if not item.ok] or items)


def _at_the_first_failure(right: Any) -> Any:
    """A failed item fails the node at once, and the items that have not ended are dropped."""

    def failed(units: Any, task: Any, *outcome: Any) -> Any:
        place = UnitPosition.of(task.unit)
        if place.item is None:
            return right(units, task, *outcome)
        whole = right(units, task._replace(unit=place.node), *outcome)
        others = [UnitPosition(place.node, n).unit for n in range(3) if n != place.item]
        return replace(whole, task=task, drops=[*others, place.node])

    return failed


def _key_of_the_attempt(right: Any) -> Any:
    def key(run: Any, step_key: str) -> str:
        attempt = current_attempt.get()
        return f"{right(run, step_key)}.{attempt and attempt.number}"

    return key


def _any_run(right: dict[str, str]) -> dict[str, str]:
    return right | {"end_status": "SELECT 'terminated' WHERE ?1 NOTNULL"}


# --- these were there once, until the simulation found them


def _when_it_is_due(right: Any) -> Any:
    return lambda writer, rest: rest.empty or right(writer, rest)


def _with_the_others(right: Any) -> Any:
    return lambda writer, commit, _buffered: right(writer, commit, [])


def _until_cancelled(_right: Any) -> Any:
    async def undo_all(saga: Any, _error: BaseException) -> None:
        while saga._undos:
            _, undo = saga._undos.pop()
            with suppress(Exception):
                await undo()

    return undo_all


def _behind_the_guest(_right: Any) -> Any:
    return lambda database, work, argument, *, short: database.submit(work, argument, inline=short, immediate=short)


def _all_forgotten(right: dict[str, str]) -> dict[str, str]:
    return {name: sql.replace("losses = lost", "losses = 0") for name, sql in right.items()}


def _as_if_quick(right: Any) -> Any:
    async def load(loader: Any) -> Any:
        machine = await right(loader)
        loader._writer._unconfirmed = False
        return machine

    return load


def _until_now(right: Any) -> Any:
    def take_events(turn_input: Any, now: int) -> Any:
        turn_input._read_at = None
        return right(turn_input, now)

    return take_events


def _as_claimed(_right: Any) -> Any:
    async def look(keeper: Any) -> Any:
        return keeper.claim.mailbox_page

    return look


def _before_it_is_written(right: Any) -> Any:
    def start_calls(turn: Any, rest: Any) -> None:
        turn._calls.cancel(rest.cancelled)
        right(turn, rest)

    return start_calls


def _only_what_runs(_right: Any) -> Any:
    def cancel(calls: Any, keys: Iterable[str]) -> None:
        for key in keys:
            running = calls._running.pop(key, None)
            if running is not None:
                running.cancel()

    return cancel


def _until_it_suspends(right: Any) -> Any:
    def try_defer(writer: Any, decision: Any) -> bool:
        must_write = writer._unconfirmed or writer._warnings or decision.transactional or writer._counted_losses
        if writer._buffering and not must_write and not decision.following.operations:
            writer._buffer_decision(decision)
            return True
        return bool(right(writer, decision))

    return try_defer


def _without_the_last_result(_right: Any) -> Any:
    def add_refused(writer: Any, commit: Commit, buffered: Any) -> None:
        results = [fact for entry in buffered for fact in entry.decision.observed.facts]
        writer._add_late(results, commit.observed.logs)

    return add_refused


def _by_mail(right: Any) -> Any:
    def ask(tx: Any, run: Any, start_event: Any, deadline_ms: int | None, affected: Any) -> None:
        right(tx, replace(run, kind="workflow"), start_event, deadline_ms, affected)

    return ask


def _lines_of_one(right: dict[str, str]) -> dict[str, str]:
    return {
        name: sql.replace("iif(?7, coalesce(line, id), NULL)", "iif(?7, NULL, NULL)") for name, sql in right.items()
    }


BUGS: dict[str, Sequence[_Patch]] = {
    "no_fence": [_Patch(commit, "_check_fence", _any_fence)],
    "losses_not_counted": [_Patch(AttemptTracker, "count_losses", _nothing)],
    "loss_not_told": [_Patch(leases, "_SQL", _kept_for_ever)],
    "stale_cache": [_Patch(MachineCache, "take", _any_epoch)],
    "foreseen_whatever_came": [_Patch(Prediction, "holds_for", lambda _right: lambda *_: True)],
    "foresight_trusted": [_Patch(PredictedTurn, "confirm", _in_any_case)],
    "event_consumed_twice": [_Patch(commit, "deliver", _nothing)],
    "mail_left_behind": [_Patch(mailbox, "move", _nothing)],
    "wake_up_lost_at_release": [_Patch(commit, "matches_topics", lambda _right: lambda *_: False)],
    "not_due_after_resume": [_Patch(control, "_SQL", _only_the_row)],
    "strangers_kept": [_Patch(LeaseKeeper, "_release_unknown_claims", lambda _right: _wait_for_nothing)],
    "late_claim_begun": [_Patch(TurnRunner, "begin", _forgetful)],
    "reaped_too_early": [_Patch(leases, "expired", _early)],
    "never_reaped": [_Patch(leases, "reap", lambda _right: lambda *_: [])],
    "terminate_forgotten": [_Patch(control, "terminate", _only_said)],
    "terminate_overwritten": [_Patch(control, "terminate", _no_task_dropped)],
    "statements_before_fence": [_Patch(commit, "_apply_alone", _statements_first)],
    "keys_of_events_ignored": [_Patch(send, "_send", _without_keys)],
    "calls_before_commit": [_Patch(Turn, "_commit", _calls_first)],
    "epoch_not_raised": [_Patch(claim, "_SQL", _same_epoch)],
    "unit_without_fence": [_Patch(advance, "_read_ownerships", _any_unit)],
    "starts_not_written": [_Patch(advance, "write_starts", _nothing), _Patch(claim, "write_starts", _nothing)],
    "outbox_not_written": [_Patch(commit, "outbox_rows", _no_rows)],
    "outbox_before_fence": [_Patch(commit, "_apply_together", _outbox_first)],
    "failed_delivery_forgotten": [_Patch(outbox, "_settle", _as_delivered)],
    "deadline_before_mail": [_Patch(TurnInput, "read_events", _no_second_look)],
    "paused_stays_due": [_Patch(control, "_PAUSE", _still_due)],
    "answers_mixed_up": [_Patch(SqliteStore, "commit", _mixed_up)],
    "acts_not_noted": [_Patch(commit, "result_facts", _no_rows)],
    "timers_not_written": [_Patch(commit, "fact_rows", _result_thrown_away)],
    "step_lease_not_set": [_Patch(Turn, "_set_lease", lambda _right: _wait_for_nothing)],
    "step_lease_not_renewed": [_Patch(leases, "_SQL", _lease_of_the_worker)],
    "step_lease_without_heartbeats": [_Patch(LeaseKeeper, "leases", lambda _right: lambda keeper: [keeper.lease_ms])],
    "step_timeout_forgotten": [_Patch(ChainProgram, "add", _without_timeout)],
    "items_dropped_if_one_fails": [_Patch(node_rules, "collected", _only_failures)],
    "map_fails_with_its_first_item": [_Patch(GraphUnits, "_fail_permanently", _at_the_first_failure)],
    "failed_items_left_out_of_the_error": [
        _Patch(node_rules, "error_of", lambda right: lambda items: right(items[:2]))
    ],
    "declared_events_not_checked": [_Patch(requests, "check_payload", _nothing)],
    "declared_events_not_decoded": [_Patch(pending, "read_payload", lambda _right: lambda _type, data, _: plain(data))],
    "idempotency_key_of_an_attempt": [_Patch(step_info, "idempotency_key", _key_of_the_attempt)],
    "progress_lost_with_a_failure": [_Patch(RunningAttempt, "_keep_heartbeat", _nothing)],
    "progress_lost_with_retry_step": [_Patch(attempts, "ReportedFailure", lambda _right: ())],
    "buffer_lost_at_a_rest": [_Patch(turn_writer, "_merged", lambda _right: lambda _buffer, last: last)],
    "late_results_not_offered": [_Patch(TurnWriter, "_add_late", _nothing)],
    "late_results_for_any_run": [_Patch(late, "_SQL", _any_run)],
    "retry_before_its_failure": [_Patch(TurnWriter, "try_defer", _when_it_is_due)],
    "cut_off_with_the_others": [_Patch(TurnWriter, "_write_transaction", _with_the_others)],
    "acts_unheard_of": [_Patch(TurnWriter, "has_operations", lambda _right: False)],
    "undoing_cancelled": [_Patch(Saga, "_undo_all", _until_cancelled)],
    "loaded_too_late": [_Patch(MachineLoader, "load", _as_if_quick)],
    "loss_forgotten_by_resume": [_Patch(control, "_SQL", _all_forgotten)],
    "deadline_while_mail_was_read": [_Patch(TurnInput, "take_events", _until_now)],
    "ids_of_one_run": [_Patch(successors, "_SQL", _lines_of_one)],
    "renamed_steps_not_found": [_Patch(StepNames, "aliases", lambda _right: lambda *_: {})],
    "exits_not_read": [_Patch(GraphRunTurn, "_read_exits", _as_claimed)],
    "graph_cancelled_by_mail": [_Patch(control, "request_cancel", _by_mail)],
    "tombstone_not_written": [_Patch(ends, "_write_tombstone", _nothing)],
    "cancelled_before_it_is_written": [_Patch(Turn, "_start_calls", _before_it_is_written)],
    "called_after_it_was_cancelled": [_Patch(CallsInFlight, "cancel", _only_what_runs)],
    "outcome_lost_by_a_pause": [
        _Patch(CallsInFlight, "in_flight", lambda _right: property(lambda calls: calls.running))
    ],
    "acts_kept_for_ever": [_Patch(TurnWriter, "try_defer", _until_it_suspends)],
    "last_result_not_offered": [_Patch(TurnWriter, "_add_refused", _without_the_last_result)],
    "reads_behind_a_transaction": [_Patch(Database, "read", _behind_the_guest)],
}


@contextmanager
def planted(bug: str) -> Iterator[None]:
    kept = [(patch, getattr(patch.where, patch.name)) for patch in BUGS[bug]]
    for patch, right in kept:
        wrong = patch.wrong(right)
        if isinstance(right, dict) and (wrong == right or wrong.keys() != right.keys()):
            raise ValueError(f"{bug} changes no statement of {patch.where.__name__}.{patch.name}")
        setattr(patch.where, patch.name, wrong)
    try:
        yield
    finally:
        for patch, right in kept:
            setattr(patch.where, patch.name, right)
