"""The authoring models. This is the one place where a model is registered: a new model adds one entry."""

from __future__ import annotations

from holdfast.chain.model import ChainModel
from holdfast.graph.model import GraphModel
from holdfast.kernel.model import Models
from holdfast.workflow.model import WorkflowModel


def load_models() -> Models:
    return Models(
        WorkflowModel(),
        ChainModel(),
        GraphModel(),
    )
