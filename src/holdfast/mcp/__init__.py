"""An MCP server for an app: ``mcp_server``."""

from holdfast.mcp.server import mcp_server

__all__ = ["mcp_server"]
