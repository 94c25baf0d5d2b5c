"""An observer that records the points at which the engine calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.kernel.attempt import Attempt
from holdfast.kernel.driver import Outcome
from holdfast.kernel.telemetry import Ended, Telemetry
from holdfast.store.protocol import (
    Advance,
    Claim,
    Commit,
    Committed,
    Finish,
    NewEvent,
    NewRun,
    Observed,
    OutboxRow,
    RecordedOperation,
    RunRecord,
    StoredEvent,
)


class Recorder(Telemetry):
    """Records each call as one line of text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.attempt_contexts: list[str] = []

    def start_began(self, runs: Sequence[NewRun]) -> Ended:
        return self._operation(f"start {len(runs)} {runs[0].workflow}")

    def send_began(self, event: NewEvent) -> Ended:
        return self._operation(f"send {event.type}")

    def request_began(self, headers: Mapping[str, str]) -> Ended:
        return self._operation("request")

    def turn_began(self, claim: Claim, now_ms: int) -> None:
        self.lines.append(f"turn{' taken over' if claim.lost else ''} {claim.run.workflow}")

    def turn_ended(self, claim: Claim, finish: Finish | None) -> None:
        self.lines.append(f"turn ended {None if finish is None else finish.status.value}")

    def operations_planned(self, claim: Claim, operations: Sequence[RecordedOperation]) -> None:
        self.lines.append(f"operations {[type(one.operation).__name__ for one in operations]}")

    def outbox_planned(self, claim: Claim, observed: Observed) -> None:
        self.lines.append(f"outbox {[event.type for event in observed.outbox]}")

    def events_read(self, claim: Claim, events: Sequence[StoredEvent]) -> None:
        self.lines.append(f"events {[event.type for event in events]}")

    def attempt_began(self, attempt: Attempt) -> None:
        self.lines.append(f"attempt {attempt.key} {attempt.number}")

    def attempt_ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        how = "abandoned" if outcome is None else "ok" if outcome.failure is None else outcome.failure.name
        self.lines.append(f"attempt ended {attempt.key} {attempt.number} {how}")

    def batch_written(self, seconds: float) -> None:
        assert seconds >= 0

    def commit_written(self, run: RunRecord, commit: Commit, result: Committed) -> None:
        self.lines.append(f"commit {result.verdict.value} {type(commit.following.next).__name__}")

    def advance_written(self, run: RunRecord, advance: Advance) -> None:
        self.lines.append(f"advance {[fact.key for fact in advance.results]}")

    def parked(self, run: RunRecord, reason: str) -> None:
        self.lines.append(f"parked {reason}")

    def delivery_began(self, row: OutboxRow, run: RunRecord | None) -> Ended:
        return self._operation(f"delivery {row.type}")

    def close(self) -> None:
        self.lines.append("close")

    def _operation(self, line: str) -> Callable[[BaseException | None], None]:
        self.lines.append(line)
        return lambda error: self.lines.append(f"{line} {'ok' if error is None else type(error).__name__}")
