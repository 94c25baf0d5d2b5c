"""The part of ``Handle`` that reads the streams of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from holdfast.client.handle_client import HandleClient
from holdfast.core.stream_records import StreamInfo, StreamItem


class HandleStreams(HandleClient):
    """The streams of a run."""

    workflow: str
    id: str

    def stream(
        self, name: str, after: int = 0, attempts: Literal["successful", "all"] = "successful", *,
        run_number: int | None = None,
    ) -> AsyncIterator[StreamItem]:  # fmt: skip
        """Iterate over the items of a stream after an offset, until the stream is closed or the run has ended.

        With ``attempts="successful"`` the items of a step are returned once its attempt has succeeded, and those of
        failed attempts are left out; items of workflow code are returned at once. ``attempts="all"`` returns every item
        as soon as it is stored. ``run_number``: another run than the current one.
        """
        return self._client.streams.read(self.workflow, self.id, name, after, attempts, run_number)

    async def streams(self, run_number: int | None = None) -> list[StreamInfo]:
        """The streams of the run, in the order of their names."""
        return await self._client.streams.infos(self.workflow, self.id, run_number)
