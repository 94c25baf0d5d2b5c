"""State-first graphs: nodes with edges between them, each node a unit of its run that any worker can take."""

from holdfast.graph.definition import Graph, Node
from holdfast.graph.items import Failed, Ok
from holdfast.graph.progress import Advancement, Finished, Killed, Started

__all__ = ["Advancement", "Failed", "Finished", "Graph", "Killed", "Node", "Ok", "Started"]
