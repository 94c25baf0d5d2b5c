"""Reads the history of a run from the server: all pages of it, or the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.cli.remote import Remote
from holdfast.cli.wire import Fields

LISTS = ("steps", "events", "logs")
_LARGEST_PAGE = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read. A page size or a cursor means: one page, and say how to go on."""

    path: tuple[str, ...]
    query: Mapping[str, object]
    page_size: int | None
    cursors: Mapping[str, str | None]

    @property
    def one_page(self) -> bool:
        return self.page_size is not None or any(self.cursors.values())


@dataclass(slots=True)
class Past:
    """What was read. ``cursors``: behind what was read, of each list that has more."""

    run_number: int
    from_start: bool
    items: dict[str, list[Fields]] = field(default_factory=lambda: {name: [] for name in LISTS})
    cursors: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return self.from_start and not self.cursors


def read(remote: Remote, wanted: Wanted, lists: tuple[str, ...] = LISTS) -> Past:
    """``lists``: those that matter; the others are not read to their end."""
    page = _page(remote, wanted, dict(wanted.cursors), wanted.page_size or _LARGEST_PAGE, None)
    past = Past(page.number("runNumber") or 0, from_start=not any(wanted.cursors.values()))
    open_lists = _take(page, past, lists)
    while open_lists and not wanted.one_page:
        page = _page(remote, wanted, past.cursors, _LARGEST_PAGE, past.run_number)
        open_lists = _take(page, past, open_lists)
    return past


def _page(
    remote: Remote, wanted: Wanted, cursors: Mapping[str, str | None], page_size: int, run_number: int | None
) -> Fields:
    query = {**wanted.query, "pageSize": page_size, **{f"{name}Cursor": cursor for name, cursor in cursors.items()}}
    if run_number is not None:  # of the first page: a restart in between begins another history
        query["runNumber"] = run_number
    return remote.get(*wanted.path, "history", expect="steps", query=query)


def _take(page: Fields, past: Past, lists: tuple[str, ...]) -> tuple[str, ...]:
    """Add the page's items; the lists that have more, with their cursors moved."""
    open_lists = []
    for name in lists:
        past.items[name] += page.list(name)
        cursor = page.text(f"{name}Cursor")
        if page.true(f"{name}HasNextPage") and cursor and cursor != past.cursors.get(name):
            past.cursors[name] = cursor
            open_lists.append(name)
        else:
            past.cursors.pop(name, None)
    return tuple(open_lists)
