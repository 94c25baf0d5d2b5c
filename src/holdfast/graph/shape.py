"""The shape of a graph, which is stored with each run: the names of nodes and the edges between them.

Nodes are numbered from 1 in the order of their definition; the number of a node is its unit. The unit of an item of a
mapped node is computed from the node's number and the item's index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from holdfast.core import codec
from holdfast.store.protocol import MissingDecrement, NewUnit

COLLECT = "collect"
MAX_NODES = 1 << 20
MAX_ITEMS = 100_000
_NODE_BITS = 20
_NODES = b'"nodes":'


class NodeShape(NamedTuple):
    name: str
    after: tuple[str, ...] = ()
    map: str | None = None
    """The predecessor over whose list the node is mapped."""
    run: str | None = None
    """The workflow, chain or graph that the node starts."""
    map_errors: str | None = None
    """``collect``: failed items are part of the node's result. None: failed items fail the node."""

    @property
    def collects(self) -> bool:
        return self.map_errors == COLLECT


class UnitPosition(NamedTuple):
    """The node of a unit, and the index of the item if the unit is an item of a mapped node."""

    node: int
    item: int | None = None

    @staticmethod
    def of(unit: int) -> UnitPosition:
        return _position_of(unit)

    @property
    def unit(self) -> int:
        return self.node if self.item is None else (self.item + 1 << _NODE_BITS) + self.node


@lru_cache(maxsize=4096)
def _position_of(unit: int) -> UnitPosition:
    """The position is read four times in the life of a node, and nodes of all runs have the same numbers."""
    item, node = divmod(unit, MAX_NODES)
    return UnitPosition(node, None if item == 0 else item - 1)


class Shape:
    """Nodes and edges of a graph. All runs with the same shape share one instance."""

    def __init__(self, nodes: Sequence[NodeShape]) -> None:
        self.nodes = tuple(nodes)
        self.number = {node.name: n for n, node in enumerate(nodes, 1)}
        self._predecessors: list[tuple[int, ...]] = [()]
        self._successors: list[list[int]] = [[] for _ in range(len(nodes) + 1)]
        self._decrements: dict[int, Sequence[MissingDecrement]] = {}
        for n, node in enumerate(nodes, 1):
            self._predecessors.append(tuple(self.number[name] for name in node.after))
            for predecessor in self._predecessors[n]:
                self._successors[predecessor].append(n)

    def node(self, number: int) -> NodeShape:
        return self.nodes[number - 1]

    def decrements(self, number: int) -> Sequence[MissingDecrement]:
        """The decrements that the result of a node causes; the runs of a shape share them."""
        known = self._decrements.get(number)
        if known is None:
            known = self._decrements[number] = tuple(MissingDecrement(n) for n in self._successors[number])
        return known

    def descendants(self, number: int) -> list[int]:
        """All nodes that come after a node, directly or indirectly, in ascending order."""
        descendants: set[int] = set()
        unvisited = [number]
        while unvisited:
            for n in self._successors[unvisited.pop()]:
                if n not in descendants:
                    descendants.add(n)
                    unvisited.append(n)
        return sorted(descendants)

    def key(self, unit: int) -> str:
        """The key of a unit's facts: the node's name, with the item's index if the unit is an item."""
        position = UnitPosition.of(unit)
        name = self.node(position.node).name
        return name if position.item is None else f"{name}[{position.item}]"

    @cached_property
    def units(self) -> Sequence[NewUnit]:
        return [NewUnit(n, node.name, len(node.after)) for n, node in enumerate(self.nodes, 1)]

    def meta(self, version: int, created_at: int) -> bytes:
        head = json.dumps({"wf_version": version, "created_at": created_at, "total_nodes": len(self.nodes)})
        return head[:-1].encode() + b", " + _NODES + _encoded(self.nodes) + b"}"

    @staticmethod
    def of_meta(meta: bytes) -> Shape:
        return _decoded(meta[meta.index(_NODES) + len(_NODES) : -1])


@lru_cache(maxsize=256)
def _encoded(nodes: tuple[NodeShape, ...]) -> bytes:
    return codec.encode([_content(node) for node in nodes], what="the shape of the graph")


@lru_cache(maxsize=256)
def _decoded(nodes: bytes) -> Shape:
    return Shape(
        [
            NodeShape(
                node["name"], tuple(node.get("after", ())), node.get("map"), node.get("run"), node.get("map_errors")
            )
            for node in codec.plain(nodes)
        ]
    )


def _content(node: NodeShape) -> dict[str, Any]:
    content = node._asdict() | {"after": list(node.after)}
    return {key: value for key, value in content.items() if value}


def cycle(edges: dict[str, Iterable[str]]) -> list[str] | None:
    """A path from a node back to itself along ``after``, or None. It does not recurse, because paths can be long."""
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, bool]] = [(start, True)]
        while stack:
            name, entering = stack.pop()
            if not entering:
                on_path.discard(path.pop())
                done.add(name)
            elif name in on_path:
                return [*path[path.index(name) :], name]
            elif name not in done:
                path.append(name)
                on_path.add(name)
                stack.append((name, False))
                stack.extend((predecessor, True) for predecessor in edges.get(name, ()))
    return None
