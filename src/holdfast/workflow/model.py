"""The authoring model of workflows. Its runs show each recorded key as a step, as ``Model`` does by default."""

from __future__ import annotations

from holdfast.kernel.model import Model
from holdfast.workflow.driver import WORKFLOW
from holdfast.workflow.repair import WorkflowRepairRules


class WorkflowModel(Model):
    kind = WORKFLOW
    replays_code = True
    repair = WorkflowRepairRules()
