"""What happened in a simulation, in order: added to, never changed, and the same for the same seed."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Entry(NamedTuple):
    at: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:9.3f} s  {self.who:<9} {self.what}"


class Trace:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.violations: list[str] = []
        """Promises that were seen to be broken."""

    def add(self, at: float, who: str, what: str) -> None:
        self.entries.append(Entry(at, who, what))

    def violate(self, at: float, who: str, what: str) -> None:
        self.violations.append(what)
        self.add(at, who, f"VIOLATION: {what}")

    def digest(self) -> str:
        hashed = hashlib.sha256()
        for entry in self.entries:
            hashed.update(f"{entry.at!r}|{entry.who}|{entry.what}\n".encode())
        return hashed.hexdigest()[:16]
