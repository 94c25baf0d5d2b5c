"""The part of ``Handle`` that shows where a run is in its code."""

from __future__ import annotations

from pathlib import Path

from holdfast.client.handle_client import HandleClient
from holdfast.core.views import ReplayView, Stack


class HandleViews(HandleClient):
    """Stack, replay and export of a run. The run's facts are replayed on the code of this process.

    Nothing is written, and no step is called.
    """

    workflow: str
    id: str

    async def stack(self, *, all: bool = False) -> Stack:
        """The tasks of the run's code that have not ended, each with its frames and local variables.

        Local variables are bounded text, and values of secret names are redacted (``Holdfast(redact=...)``).
        ``all``: also show the frames of libraries and of the engine.
        """
        return await self._client.views.stack(self.workflow, self.id, all=all)

    async def replay(self, until: int | None = None, *, run_number: int | None = None, all: bool = False) -> ReplayView:
        """The run after ``until`` facts of its history: stack, pending requests and log lines at that position.

        0 is before the first fact; None, or a number beyond the last fact, is the end of the history. ``run_number``:
        another run than the current one. ``all``: as in ``stack``.
        """
        return await self._client.views.replay(self.workflow, self.id, until, run_number=run_number, all=all)

    async def export(self, path: str | Path, *, run_number: int | None = None) -> None:
        """Write the run as a JSON file that can be replayed on another machine.

        The file has all recorded values: input, results, events, logs.
        """
        await self._client.views.export(self.workflow, self.id, path, run_number=run_number)
