"""Graphs: nodes with edges between them. Each node is a unit of its run, which any worker can claim."""

from holdfast.graph.definition import Graph, Node
from holdfast.graph.items import Failed, Ok
from holdfast.graph.progress import Advancement, Finished, Killed, Started

__all__ = ["Advancement", "Failed", "Finished", "Graph", "Killed", "Node", "Ok", "Started"]
