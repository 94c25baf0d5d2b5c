"""Who watches whom, and who belongs to whom. What is done when a watched run ends is in ``ends``."""

from __future__ import annotations

from holdfast.core.model import Status
from holdfast.store.protocol import Relations, Relative, Watch
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("watching")
_SHOWN = 100


def watch(tx: Tx, watcher: int, target: int, kind: Watch) -> None:
    if kind:
        tx.connection.execute(_SQL["watch"], (target, watcher, int(kind)))
    if kind & Watch.LINK:
        tx.connection.execute(_SQL["watch"], (watcher, target, int(Watch.LINK)))


def unwatch(tx: Tx, watcher: int, target: int, kind: Watch) -> None:
    _ease(tx, watcher, target, kind)
    if kind & Watch.LINK:
        _ease(tx, target, watcher, Watch.LINK)


def relations(tx: Tx, run: int) -> Relations:
    def all_of(name: str) -> list[tuple[str, str]]:
        return [(f"{row[0]}/{row[1]}", row[2]) for row in tx.connection.execute(_SQL[name], (run, _SHOWN))]

    return Relations(
        children=[Relative(pid, Status(status)) for pid, status in all_of("children")],
        watches=[(pid, Watch(int(kind))) for pid, kind in all_of("watches")],
        watched_by=[(pid, Watch(int(kind))) for pid, kind in all_of("watched_by")],
    )


def _ease(tx: Tx, watcher: int, target: int, kind: Watch) -> None:
    tx.connection.execute(_SQL["ease"], (target, watcher, int(kind)))
    tx.connection.execute(_SQL["forget"], (target, watcher))
