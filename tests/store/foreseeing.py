"""Events that are sent together with the turn that they cause."""

from __future__ import annotations

from typing import Any

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Claimant,
    Commit,
    Delivery,
    Finish,
    Foreseen,
    NewEvent,
    Park,
    Release,
    RunRecord,
    Sent,
    TaskRef,
    Verdict,
)
from store.world import FLOW, LEASE, World, result, turn

HERE = Claimant("w9", LEASE, ["default"])
KEY = "approval"
ENDS = Finish(Status.COMPLETE, output=b"7")


async def foresee(
    world: World,
    run: RunRecord,
    then: Finish | Park | Release | None = ENDS,
    *,
    n: int = 1,
    epoch: int = 2,
    key: str = KEY,
    **more: Any,
) -> NewEvent:
    """The event ``go`` to a run that rests, and what w9 is going to make of it."""
    at = await world.now()
    fact = result(key, at=at, event=n, event_type="go", value=None)
    commit = turn(
        TaskRef(run.run, 0, "w9", epoch), facts=[fact], deliveries=[Delivery(n, key, at)], then=then, seen=n, **more
    )
    return NewEvent(
        FLOW, run.instance_id, "go", payload=b"precious", claimant=HERE, foreseen=Foreseen(run, n, at, commit)
    )


async def post(world: World, event: NewEvent) -> Sent:
    [sent] = await world.store.send([event])
    return sent


async def write(world: World, event: NewEvent) -> Commit:
    """Send it, and if the store has not written the turn along with it, write that. Either is right for a store."""
    assert event.foreseen is not None
    sent, commit = await post(world, event), event.foreseen.commit
    if sent.committed is None:
        assert sent.claim is not None
        assert event.foreseen.is_met_by(sent.claim)
        [committed] = await world.store.commit([commit])
    else:
        assert sent.claim is None
        committed = sent.committed
    assert committed.verdict is Verdict.APPLIED
    return commit
