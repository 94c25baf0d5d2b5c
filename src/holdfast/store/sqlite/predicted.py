"""Writes an event together with the turn that it causes, if the turn was predicted."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.protocol import NewEvent, Sent
from holdfast.store.sqlite.commit import affects_others, commit
from holdfast.store.sqlite.send import send
from holdfast.store.sqlite.tx import Tx


def send_predicted(tx: Tx, events: Sequence[NewEvent]) -> list[Sent]:
    """As ``send``; also writes the predicted commit of each event whose prediction holds."""
    if all(event.prediction is None for event in events):
        return send(tx, events)
    return [_send_one(tx, event) for event in events]


def _send_one(tx: Tx, event: NewEvent) -> Sent:
    [sent] = send(tx, [event])
    prediction = event.prediction
    if (
        prediction is None
        or sent.claim is None
        or not prediction.holds_for(sent.claim)
        or affects_others(prediction.commit)
    ):
        return sent
    [committed] = commit(tx, [prediction.commit])
    return Sent(sent.run, accepted=True, woken=True, committed=committed)
