"""The queue between the calls of a turn and its machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.failure import Failure
from holdfast.kernel.driver import Outcome
from holdfast.runner.turn_context import TurnHost


class OutcomeQueue(list[Outcome]):
    """Outcomes that the machine has not received yet, in the order in which it will receive them.

    A list, because a deque takes 700 bytes when it is empty, and a process has many turns.
    """

    __slots__ = ("_host", "taken")

    def __init__(self, host: TurnHost) -> None:
        super().__init__()
        self.taken: Sequence[Outcome] = ()
        """The outcomes that the machine received last."""
        self._host = host

    def has(self, key: str) -> bool:
        return any(outcome.key == key for outcome in self)

    def add(self, outcome: Outcome) -> None:
        if outcome.writes is None or outcome.writes.transaction is None:
            self.append(outcome)
        else:
            self.insert(0, outcome)  # other commits may wait for its transaction to end

    @property
    def needs_closed_transactions(self) -> bool:
        """True if the next outcome is transactional without a live transaction of its own.

        Its commit waits until no live transaction of the turn is open.
        """
        first = self[0]
        return first.writes is not None and first.writes.transaction is None

    def take(self) -> Sequence[Outcome]:
        """Take the outcomes before the next transactional one, or that one alone: its commit may be rejected."""
        number = 1
        if len(self) > 1 and self[0].writes is None:
            number = next((n for n, outcome in enumerate(self) if outcome.writes is not None), len(self))
        taken = self.taken = self[:number]
        del self[:number]
        return taken

    def take_nothing(self) -> Sequence[Outcome]:
        self.taken = ()
        return self.taken

    def put_back(self, outcomes: Sequence[Outcome]) -> None:
        """Put outcomes of unwritten decisions in front of the queue, for the next machine."""
        self[:0] = outcomes

    def fail_taken(self, error: Failure) -> None:
        """Put the outcomes that the machine received last back as failures."""
        self[:0] = [outcome.failed(error) for outcome in reversed(self.taken)]

    def roll_back_taken(self) -> None:
        """Roll back the live transactions of the outcomes that the machine received last."""
        self._roll_back(self.taken)

    def roll_back(self) -> None:
        """Roll back the live transactions of the waiting outcomes, which will not be written."""
        self._roll_back(self)

    def _roll_back(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if (transaction := outcome.transaction) is not None:
                self._host.run_in_background(transaction.rollback())
