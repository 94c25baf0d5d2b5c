"""The trace of a simulation: its events in order, equal for two runs of the same seed."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Entry(NamedTuple):
    at: float
    process: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:9.3f} s  {self.process:<9} {self.text}"


class Trace:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.violations: list[str] = []
        """Violations of the engine's promises."""

    def add(self, at: float, process: str, text: str) -> None:
        self.entries.append(Entry(at, process, text))

    def violate(self, at: float, process: str, violation: str) -> None:
        """Add a violation of one of the engine's promises."""
        self.violations.append(violation)
        self.add(at, process, f"VIOLATION: {violation}")

    def digest(self) -> str:
        """Return a hash of all entries."""
        hashed = hashlib.sha256()
        for entry in self.entries:
            hashed.update(f"{entry.at!r}|{entry.process}|{entry.text}\n".encode())
        return hashed.hexdigest()[:16]
