"""Watches and relations of runs. The module ``ends`` handles the end of a watched run."""

from __future__ import annotations

from typing import Any

from holdfast.core.model import Status
from holdfast.store.protocol import RelatedRun, Relations, RelationsQuery, Watch
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("watching")
_MAX_RELATIONS = 100


def watch(tx: Tx, watcher: int, target: int, kind: Watch) -> None:
    if kind:
        tx.connection.execute(_SQL["watch"], (target, watcher, int(kind)))
    if kind & Watch.LINK:
        tx.connection.execute(_SQL["watch"], (watcher, target, int(Watch.LINK)))


def unwatch(tx: Tx, watcher: int, target: int, kind: Watch) -> None:
    _remove_flags(tx, watcher, target, kind)
    if kind & Watch.LINK:
        _remove_flags(tx, target, watcher, Watch.LINK)


def relations(tx: Tx, query: RelationsQuery) -> Relations:
    run = query.run

    def related(name: str) -> list[tuple[str, Any]]:
        return [(f"{row[0]}/{row[1]}", row[2]) for row in tx.connection.execute(_SQL[name], (run, _MAX_RELATIONS))]

    return Relations(
        children=[RelatedRun(pid, Status(status)) for pid, status in related("children")],
        watches=[(pid, Watch(int(kind))) for pid, kind in related("watches")],
        watched_by=[(pid, Watch(int(kind))) for pid, kind in related("watched_by")],
        forks=["/".join(row) for row in tx.connection.execute(_SQL["forks"], (run, _MAX_RELATIONS))],
    )


def _remove_flags(tx: Tx, watcher: int, target: int, kind: Watch) -> None:
    tx.connection.execute(_SQL["remove_flags"], (target, watcher, int(kind)))
    tx.connection.execute(_SQL["delete_empty"], (target, watcher))
