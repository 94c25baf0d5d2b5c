"""What a run does to others, one act after the other, and the facts that say what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from holdfast.store.protocol import (
    CANCEL,
    REPLY,
    Act,
    Answer,
    AnswerEvent,
    CancelRun,
    Created,
    Deed,
    Fact,
    NewEvent,
    NewRun,
    RunRecord,
    TerminateRun,
    Touched,
    UnwatchRun,
    WatchRun,
)
from holdfast.store.sqlite import ends
from holdfast.store.sqlite.control import ask_to_cancel
from holdfast.store.sqlite.create import create
from holdfast.store.sqlite.reads import find_current, record_of
from holdfast.store.sqlite.rows import unsafe
from holdfast.store.sqlite.send import Parcel, mail_to, note_effect, post, send
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx
from holdfast.store.sqlite.watching import unwatch, watch

_SQL = statements("acts")


@dataclass(slots=True)
class Acted:
    answers: list[Answer] = field(default_factory=list)
    births: list[Created] = field(default_factory=list)
    touched: Touched = field(default_factory=Touched)


def perform(tx: Tx, run: int, acts: Sequence[Act]) -> Acted:
    actor = _Actor(tx, record_of(tx, run))
    for act in acts:
        actor.acted.answers.append(actor.do(act.deed))
    return actor.acted


def facts_of(acts: Sequence[Act], answers: Sequence[Answer]) -> list[Fact]:
    return [
        act.fact._replace(ok=answer.ok, value=json.dumps(answer).encode())
        for act, answer in zip(acts, answers, strict=True)
    ]


class _Actor:
    def __init__(self, tx: Tx, me: RunRecord) -> None:
        self._tx = tx
        self._me = me
        self.acted = Acted()

    def do(self, deed: Deed) -> Answer:
        if self._me.run in self.acted.touched.ended:  # by an act before this one
            return Answer.ENDED
        match deed:
            case NewRun():
                return self._start(deed)
            case NewEvent():
                return self._send(deed)
            case WatchRun():
                return self._watch(deed)
            case UnwatchRun():
                return self._unwatch(deed)
            case CancelRun():
                return self._cancel(deed)
            case TerminateRun():
                return self._terminate(deed)
            case AnswerEvent():
                return self._answer(deed)

    def _start(self, new: NewRun) -> Answer:
        [created] = create(self._tx, [new])
        ends.add(self.acted.touched, created.touched)
        if created.epoch or created.units:
            self.acted.births.append(created)
        if created.created and not created.epoch:
            self.acted.touched.work = True
        return created.answer

    def _send(self, event: NewEvent) -> Answer:
        # Nobody would learn of a claim.
        [sent] = send(self._tx, [replace(event, claimant=None)])
        if sent.run is None:
            return Answer.MISSING
        if not sent.accepted:
            return Answer.ENDED
        if sent.woken:
            self.acted.touched.woken.append(sent.run.run)
            self.acted.touched.work |= sent.run.owner is None
        return Answer.DONE

    def _watch(self, deed: WatchRun) -> Answer:
        target = find_current(self._tx, deed.workflow, deed.instance_id)
        if target is None:
            return Answer.MISSING
        if target.status.terminal:
            mail_to(self._tx, self._me.run, ends.exit_of(target, deed.watch), self.acted.touched)
        else:
            watch(self._tx, self._me.run, target.run, deed.watch)
        return Answer.DONE

    def _unwatch(self, deed: UnwatchRun) -> Answer:
        target = find_current(self._tx, deed.workflow, deed.instance_id)
        if target is None:
            return Answer.MISSING
        unwatch(self._tx, self._me.run, target.run, deed.watch)
        return Answer.DONE

    def _cancel(self, deed: CancelRun) -> Answer:
        target = find_current(self._tx, deed.workflow, deed.instance_id)
        if target is None:
            return Answer.MISSING
        if target.status.terminal:
            return Answer.ENDED
        letter = Parcel(CANCEL, deed.payload, sender=ends.pid_of(self._me))
        ask_to_cancel(self._tx, target, letter, deed.deadline_ms, self.acted.touched)
        return Answer.DONE

    def _terminate(self, deed: TerminateRun) -> Answer:
        target = find_current(self._tx, deed.workflow, deed.instance_id)
        if target is None:
            return Answer.MISSING
        if target.status.terminal:
            return Answer.ENDED
        ends.add(self.acted.touched, ends.terminate(self._tx, target.run, deed.reason))
        return Answer.DONE

    def _answer(self, deed: AnswerEvent) -> Answer:
        tx, key = self._tx, (self._me.run, deed.event)
        asked = tx.connection.execute(_SQL["asked"], key).fetchone()
        if asked is None:
            return Answer.MISSING
        tx.connection.execute(_SQL["reply"], (*key, deed.reply.ok, deed.reply.value, tx.now))
        sender, ask = map(unsafe, asked)
        if sender is not None and ask is not None and tx.connection.changes():
            self._reply(sender, ask, deed)
        return Answer.DONE

    def _reply(self, to: str, ask: str, deed: AnswerEvent) -> None:
        """To whoever has that pid now. Who asked from outside looks for the answer where the question is."""
        workflow, _, instance_id = to.partition("/")
        asker = find_current(self._tx, workflow, instance_id)
        if asker is None or asker.status.terminal:
            return
        ok = b"true" if deed.reply.ok else b"false"
        payload = b'{"ask":%s,"ok":%s,"value":%s}' % (json.dumps(ask).encode(), ok, deed.reply.value or b"null")
        effect = post(self._tx, asker, Parcel(REPLY, payload, sender=ends.pid_of(self._me)))
        note_effect(self.acted.touched, asker.run, effect)
