"""Runs from outside: start them, look at them, steer them. Reaches them only through the store.

``Handle`` is what users hold; ``Client`` makes handles, and serves the HTTP API. Neither knows how a run is executed.
"""

from holdfast.client.client import Client, Start
from holdfast.client.handle import Handle
from holdfast.client.records import HistoryPage, HistoryQuery, Part

__all__ = ["Client", "Handle", "HistoryPage", "HistoryQuery", "Part", "Start"]
