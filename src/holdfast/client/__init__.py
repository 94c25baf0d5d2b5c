"""Access to runs from outside: start, read and control them, through the store only.

``Handle`` is the user's reference to an instance. ``Client`` makes handles and serves the HTTP API and the CLI.
Neither depends on how runs are executed.
"""

from holdfast.client.client import Client
from holdfast.client.handle import Handle
from holdfast.client.records import HistoryPage, HistoryQuery, Part
from holdfast.client.repair import UNCHANGED
from holdfast.client.starts import Start

__all__ = ["UNCHANGED", "Client", "Handle", "HistoryPage", "HistoryQuery", "Part", "Start"]
