"""Helpers for predictions: events that are sent together with the turn that they cause."""

from __future__ import annotations

from typing import Any

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Claimant,
    Commit,
    Delivery,
    Finish,
    NewEvent,
    Park,
    Prediction,
    Release,
    RunRecord,
    Sent,
    TaskRef,
    Verdict,
)
from store.world import FLOW, LEASE, World, result, turn

CLAIMANT = Claimant("w9", LEASE, ["default"])
KEY = "approval"
ENDS = Finish(Status.COMPLETE, output=b"7")


async def predict(
    world: World,
    run: RunRecord,
    then: Finish | Park | Release | None = ENDS,
    *,
    n: int = 1,
    epoch: int = 2,
    key: str = KEY,
    **more: Any,
) -> NewEvent:
    """The event ``go`` to a suspended run, with the turn of w9 as its prediction."""
    at = world.now()
    fact = result(key, at=at, event=n, event_type="go", value=None)
    commit = turn(
        TaskRef(run.run, 0, "w9", epoch), facts=[fact], deliveries=[Delivery(n, key, at)], then=then, seen=n, **more
    )
    return NewEvent(
        FLOW, run.instance_id, "go", payload=b"precious", claimant=CLAIMANT, prediction=Prediction(run, n, at, commit)
    )


async def send_event(world: World, event: NewEvent) -> Sent:
    [sent] = await world.store.send([event])
    return sent


async def send_and_commit(world: World, event: NewEvent) -> Commit:
    """Send the event, and commit its predicted turn unless the store has done so with the event. Both are correct."""
    assert event.prediction is not None
    sent, commit = await send_event(world, event), event.prediction.commit
    if sent.committed is None:
        assert sent.claim is not None
        assert event.prediction.holds_for(sent.claim)
        [committed] = await world.store.commit([commit])
    else:
        assert sent.claim is None
        committed = sent.committed
    assert committed.verdict is Verdict.APPLIED
    return commit
