"""The authoring models. This is the one place where a model is registered: a new model adds one entry."""

from __future__ import annotations

from holdfast.chain.model import ChainModel
from holdfast.graph.model import GraphModel
from holdfast.kernel.model import Model
from holdfast.workflow.model import WorkflowModel

MODELS: tuple[Model, ...] = (
    WorkflowModel(),
    ChainModel(),
    GraphModel(),
)
