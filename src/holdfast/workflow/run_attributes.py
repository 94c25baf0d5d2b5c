"""The memo and the search attributes of a run, as its code has set them so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.attributes import check_memo, check_search
from holdfast.core.limits import Limits
from holdfast.kernel.options import RunOptions
from holdfast.kernel.requests import attributes_of
from holdfast.store.protocol import Attributes, RunRecord


class RunAttributes:
    """The attributes of a run, initially those of its start. A replay sets them again, so only changes are written."""

    __slots__ = ("_limits", "_options", "_written", "changed", "memo", "search")

    def __init__(self, options: RunOptions, run: RunRecord, limits: Limits) -> None:
        options.check_readable()
        self.memo = options.memo
        self.search = options.search
        self._options = options
        self._limits = limits
        self._written = (run.memo, run.search)
        self.changed = bool(self.memo or self.search or run.memo or run.search)
        """True if the store may not have the current attributes."""

    def set_memo(self, values: Mapping[str, Any]) -> None:
        self.memo = check_memo({**self.memo, **values}, self._limits.params)
        self.changed = True

    def set_search(self, values: Mapping[str, Any]) -> None:
        self.search = check_search({**self.search, **check_search(values)})
        self.changed = True

    def take_changes(self) -> Attributes | None:
        """The attributes to write, or None if the store has them."""
        if not self.changed:
            return None
        self.changed = False
        current = attributes_of(self.memo, self.search)
        if (current.memo, current.search) == tuple(written or b"{}" for written in self._written):
            return None
        self._written = current.memo, current.search
        return current

    def options(self) -> RunOptions:
        """The options of the successor of ``continue_as_new``."""
        return replace(self._options, memo=self.memo, search=self.search)
