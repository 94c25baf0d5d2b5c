"""The part of ``Handle`` that gives its other parts the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.workflow_code import refuse_in_workflow_code

if TYPE_CHECKING:
    from holdfast.client.client import Client


class HandleClient:
    """The client of a handle, guarded against use in workflow code."""

    _unguarded: Client

    @property
    def _client(self) -> Client:
        refuse_in_workflow_code("Handle")
        return self._unguarded
