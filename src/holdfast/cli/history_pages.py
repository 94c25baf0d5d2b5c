"""Reads the history of a run from the server: all pages, or one requested page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.cli.remote import Remote
from holdfast.cli.response_fields import Fields

LISTS = ("steps", "events", "logs")
_MAX_PAGE_SIZE = 100


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """The history to read. With a page size or a cursor, one page is read; otherwise all pages."""

    path: tuple[str, ...]
    query: Mapping[str, object]
    page_size: int | None
    cursors: Mapping[str, str | None]

    @property
    def one_page(self) -> bool:
        return self.page_size is not None or any(self.cursors.values())


@dataclass(slots=True)
class RunHistory:
    """The history that was read. ``cursors`` has the position after it, for each list that has more items."""

    run_number: int
    from_start: bool
    origin: Fields
    """The request that created the run, if the run continues from the history of another one."""
    items: dict[str, list[Fields]] = field(default_factory=lambda: {name: [] for name in LISTS})
    cursors: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.from_start and not self.cursors


def read(remote: Remote, request: HistoryRequest, lists: tuple[str, ...] = LISTS) -> RunHistory:
    """Read a history. Only the lists named in ``lists`` are read to their end."""
    page = _page(remote, request, dict(request.cursors), request.page_size or _MAX_PAGE_SIZE, None)
    from_start = not any(request.cursors.values())
    history = RunHistory(page.number("runNumber") or 0, from_start, page.fields("origin"))
    unfinished = _add_page(page, history, lists)
    while unfinished and not request.one_page:
        page = _page(remote, request, history.cursors, _MAX_PAGE_SIZE, history.run_number)
        unfinished = _add_page(page, history, unfinished)
    return history


def _page(
    remote: Remote, request: HistoryRequest, cursors: Mapping[str, str | None], page_size: int, run_number: int | None
) -> Fields:
    query = {**request.query, "pageSize": page_size, **{f"{name}Cursor": cursor for name, cursor in cursors.items()}}
    if run_number is not None:  # the run of the first page, even if a restart has created a successor since
        query["runNumber"] = run_number
    return remote.get(*request.path, "history", expect="steps", query=query)


def _add_page(page: Fields, history: RunHistory, lists: tuple[str, ...]) -> tuple[str, ...]:
    """Add the page's items and advance the cursors; return the lists that have more items."""
    unfinished = []
    for name in lists:
        history.items[name] += page.list(name)
        cursor = page.text(f"{name}Cursor")
        if page.true(f"{name}HasNextPage") and cursor and cursor != history.cursors.get(name):
            history.cursors[name] = cursor
            unfinished.append(name)
        else:
            history.cursors.pop(name, None)
    return tuple(unfinished)
