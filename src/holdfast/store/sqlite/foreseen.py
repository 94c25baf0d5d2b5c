"""Writes an event together with the turn that it causes, where that was foreseen."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.protocol import NewEvent, Sent
from holdfast.store.sqlite.commit import commit, reaches_out
from holdfast.store.sqlite.send import send
from holdfast.store.sqlite.tx import Tx


def send_foreseen(tx: Tx, events: Sequence[NewEvent]) -> list[Sent]:
    """As ``send``."""
    return [_with_its_turn(tx, event) for event in events]


def _with_its_turn(tx: Tx, event: NewEvent) -> Sent:
    [sent] = send(tx, [event])
    foreseen = event.foreseen
    if foreseen is None or sent.claim is None or not foreseen.is_met_by(sent.claim) or reaches_out(foreseen.commit):
        return sent
    [committed] = commit(tx, [foreseen.commit])
    return Sent(sent.run, accepted=True, woken=True, committed=committed)
