"""The mail of a run: what may arrive when, whom it concerns, and the fact that it has come.

Made as the code asks for them: most runs deal with nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.core import codec
from holdfast.core.model import Status, StepType
from holdfast.store.protocol import CANCEL, EXIT, REPLY, Fact, FactState, Mail
from holdfast.workflow.agenda import Agenda
from holdfast.workflow.mailbox import Mailbox
from holdfast.workflow.processes import Processes

MORE = 1
"""In place of the attempts of an arrival: the next one comes before the code runs."""
_SYSTEM = "@"


class Place(NamedTuple):
    """Where a fact stands."""

    seq: int
    at: int


class Post:
    """What comes to one run from others."""

    def __init__(
        self, agenda: Agenda, make_mailbox: Callable[[], Mailbox], make_processes: Callable[[], Processes]
    ) -> None:
        self._agenda = agenda
        self._make_mailbox = make_mailbox
        self._make_processes = make_processes
        self._mailbox: Mailbox | None = None
        self._processes: Processes | None = None

    @property
    def mailbox(self) -> Mailbox:
        if self._mailbox is None:
            self._mailbox = self._make_mailbox()
        return self._mailbox

    @property
    def processes(self) -> Processes:
        if self._processes is None:
            self._processes = self._make_processes()
        return self._processes

    @property
    def topics(self) -> frozenset[str]:
        """The types of mail that would wake the run."""
        return self._agenda.topics if self._mailbox is None else self._agenda.topics | self._mailbox.awaited

    @property
    def awaited(self) -> bool:
        """The code waits for something that only others can bring about, besides events."""
        if self._processes is not None and self._processes.waiting:
            return True
        return self._mailbox is not None and bool(self._mailbox.awaited)

    # --- what comes next

    def wanted(self) -> Mail | None:
        """The oldest mail that somebody waits for, or that may arrive without that."""
        found = self._agenda.wanted_mail(self._may_arrive)
        if self._mailbox is not None:
            # It came for somebody who listened, and now somebody waits for it.
            arrived = (self._mailbox.oldest(topic) for topic in self._agenda.topics)
            found = min((mail for mail in (found, *arrived) if mail is not None), key=_number, default=None)
        return found

    def goes_on(self, mail: Mail, due: int | None) -> bool:
        """Whether more comes along with this piece before the code looks, and before something is due."""
        following = None if mail.type.startswith(_SYSTEM) else self.wanted()
        if following is None or following.type.startswith(_SYSTEM) or following.type in self._agenda.topics:
            return False
        return due is None or following.created_at <= due

    def _may_arrive(self, topic: str) -> bool:
        return topic.startswith(_SYSTEM) or (self._mailbox is not None and self._mailbox.has_room(topic))

    # --- arriving

    def arrival(self, mail: Mail, place: Place, begun: Mapping[str, Fact]) -> Fact:
        """The fact that mail has come. Where somebody knows under which key it was asked for, it has that key."""
        key, kind, ok = f"#{StepType.MESSAGE} {mail.n}", StepType.MESSAGE, True
        if mail.type == EXIT and (child := self.processes.key_of(mail)) is not None:
            key, kind, ok = child, StepType.CHILD, _content(mail)["status"] == Status.COMPLETE
        elif mail.type == REPLY and (asked := self.processes.asked_under(mail)) is not None:
            key, kind, ok = asked, StepType.ASK, _content(mail)["ok"]
        name = begun[key].name if key in begun else None
        return Fact(
            FactState.RESULT, key, 0, kind, place.at, mail.created_at,
            seq=place.seq, ok=ok, name=name, event=mail.n, event_type=mail.type,
        )  # fmt: skip

    def arrive(self, mail: Mail) -> None:
        if mail.type == EXIT:
            self.processes.exited(mail)
        elif mail.type == REPLY:
            self.processes.replied(mail)
        elif mail.type == CANCEL:
            self.processes.cancel_asked(mail)
        else:
            self.mailbox.arrive(mail)

    def taken(self, mail: Mail) -> None:
        """A wait for an event got it; no channel has it any more."""
        if self._mailbox is not None:
            self._mailbox.take(mail)

    def dissolve(self) -> None:
        """The machine is dropped: nothing here points in a circle any more."""
        if self._mailbox is not None:
            self._mailbox.dissolve()
        if self._processes is not None:
            self._processes.dissolve()

    def pass_on(self) -> None:
        """The run continues as a new one."""
        if self._processes is not None:
            self._processes.pass_on()


def _content(mail: Mail) -> Any:
    return codec.plain(mail.payload)


def _number(mail: Mail) -> int:
    return mail.n
