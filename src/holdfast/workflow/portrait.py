"""What a run says of itself: its memo and its search attributes, as far as its code has got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.attributes import check_memo, check_search
from holdfast.core.limits import Limits
from holdfast.kernel.options import RunOptions
from holdfast.kernel.requests import attributes_of
from holdfast.store.protocol import Attributes, RunRecord


class Portrait:
    """Begins with what the run was started with. A replay paints it again, so only what is new has to be written."""

    __slots__ = ("_known", "_limits", "_options", "_written", "memo", "search")

    def __init__(self, options: RunOptions, run: RunRecord, limits: Limits) -> None:
        self.memo = options.memo
        self.search = options.search
        self._options = options
        self._limits = limits
        self._written = (run.memo, run.search)
        self._known = not (self.memo or self.search or run.memo or run.search)
        """The store has what is here."""

    def set_memo(self, values: Mapping[str, Any]) -> None:
        self.memo = check_memo({**self.memo, **values}, self._limits.params)
        self._known = False

    def set_search(self, values: Mapping[str, Any]) -> None:
        self.search = check_search({**self.search, **check_search(values)})
        self._known = False

    def news(self) -> Attributes | None:
        """What the store does not know yet."""
        if self._known:
            return None
        self._known = True
        wanted = attributes_of(self.memo, self.search)
        if (wanted.memo, wanted.search) == tuple(one or b"{}" for one in self._written):
            return None
        self._written = wanted.memo, wanted.search
        return wanted

    def options(self) -> RunOptions:
        """What the run that continues this one is started with."""
        return replace(self._options, memo=self.memo, search=self.search)
