"""LangGraph: checkpoints in the app's database, and graphs that run in workflows with each node as a step."""

from holdfast.ext.langgraph.graph import Answer, DurableGraph
from holdfast.ext.langgraph.saver import HoldfastSaver
from holdfast.ext.options import StepOptions

__all__ = ["Answer", "DurableGraph", "HoldfastSaver", "StepOptions"]
