"""``ContinueAsNew``: the exception by which workflow code ends its run in favour of a successor."""

from __future__ import annotations


class ContinueAsNew(BaseException):
    """Raised by workflow code to end the run and start its successor.

    A ``BaseException``, so that code which catches ``Exception`` does not catch it.
    """

    def __init__(self, params: bytes | None) -> None:
        super().__init__("continue_as_new must be raised: `raise ctx.continue_as_new(params)`")
        self.params = params
