"""OpenAI Agents: agents whose model requests, tool calls, MCP requests and guardrails are durable steps."""

from holdfast.ext.openai_agents.durable import Approval, HoldfastProvider, RunSession, approvals, durable
from holdfast.ext.options import StepOptions

__all__ = ["Approval", "HoldfastProvider", "RunSession", "StepOptions", "approvals", "durable"]
