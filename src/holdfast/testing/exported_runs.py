"""Exported runs as tests: a run from production is replayed on the code under test."""

from __future__ import annotations

from pathlib import Path

from holdfast.app import Holdfast
from holdfast.client.replaying import Replayer
from holdfast.client.run_file import StoredRun, loads
from holdfast.core.views import ReplayView
from holdfast.errors import NonDeterministicError
from holdfast.kernel.requests import Requests
from holdfast.ports import milliseconds


async def replay_file(app: Holdfast, path: str | Path) -> ReplayView:
    """Replay a run that ``run.export`` wrote, on the code of an app that need not be open.

    Raises ``NonDeterministicError`` if the code does not fit: a recorded result that the code does not request, another
    kind under the same name, a recorded value that does not fit its type, or, for a run that has ended, another end.
    Returns the view at the end of the history.

    Example::

        async def test_the_order_of_last_friday_still_replays():
            await replay_file(app, "tests/runs/order-1.json")
    """
    replayer, stored = open_file(app, Path(path))
    differences = replayer.differences(stored)
    if differences:
        texts = "; ".join(difference.message for difference in differences)
        raise NonDeterministicError(f"{stored.row.pid} (run {stored.row.number}) does not fit the code: {texts}")
    return replayer.view(stored)


def open_file(app: Holdfast, path: Path) -> tuple[Replayer, StoredRun]:
    """The run in a file, and the replayer on the code of an app."""
    clock = app.runtime.time
    requests = Requests(app.registry, app.limits, app.runtime, clock)
    return Replayer(app.registry, requests, milliseconds(clock)), loads(path.read_bytes())
