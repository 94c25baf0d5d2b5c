"""A turn before its event: the code of a run that rests here is run first, and event and commit are written together.

So an event that wakes a run in the sender's own process costs one transaction in place of two. It is a guess that
nothing has happened to the run meanwhile, which the store checks under the run's lock. If it was wrong, nothing of the
turn is written; the event is sent as any other, the machine is dropped, and whoever takes the run goes on from what is
written, as after a crash. Until then the code has done nothing but compute: steps are called when the commit is
written, and not before.
"""

from __future__ import annotations

from holdfast.core.model import TaskKind
from holdfast.kernel.definition import Definition
from holdfast.runner.cache import Rested
from holdfast.runner.turn import Tools, Turn
from holdfast.store.protocol import Claim, Mail, Mailbag, NewEvent, TaskRef


def foreseen(event: NewEvent, at: int, rested: Rested, owner: str, definition: Definition, tools: Tools) -> Turn | None:
    """The turn that the event is going to cause, at its first rest; the event takes its commit along.

    None: it could not be worked out, and the machine is of no use any more.
    """
    mail = Mail((rested.seen or 0) + 1, event.type, event.payload, at, event.sender)
    task = TaskRef(rested.run.run, 0, owner, rested.epoch + 1)
    bag = Mailbag((mail,), complete=True, last=mail.n)
    claim = Claim(task, TaskKind.WAKE, lost=False, run=rested.run, mailbag=bag, at=at)
    turn = Turn(tools, claim, definition, rested.machine)
    try:
        event.foreseen = turn.foresee()
    except Exception:  # it comes again once the event is there, and is seen to then
        turn.drop()
        return None
    return turn
