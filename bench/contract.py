"""The interface of a contender and the job of a child process, which parent and child processes share.

Every workload is written once against `Contender`, so that the same code measures all contenders.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

STEPS_PER_RUN = 5
NAP_SECONDS = 0.05

Measurement = dict[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement, made in its own process."""

    contender: str
    measure: str
    db: str
    naps: str = ""
    lease: float = 30.0
    args: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))

    @property
    def url(self) -> str:
        return self.db if "://" in self.db else f"sqlite:///{self.db}"

    @property
    def on_postgres(self) -> bool:
        return self.db.startswith("postgresql://")

    def count(self, name: str) -> int:
        return int(self.args[name])


class Pending(Protocol):
    """A run that was started, durably."""

    async def result(self) -> object: ...

    async def send(self) -> None:
        """Send the event that a `waiter` waits for."""


class Contender(Protocol):
    async def steps(self, count: int) -> Pending:
        """Start a run of `count` trivial async steps, one after the other."""

    async def parent(self, children: int) -> Pending:
        """Start a run that starts `children` children of one step each and awaits them all."""

    async def waiter(self) -> Pending:
        """Start a run that waits for one event and returns its payload."""

    async def naps(self, index: int) -> Pending:
        """Start run number `index` of `STEPS_PER_RUN` steps that sleep and write to the nap log."""

    async def all_naps_done(self, runs: int) -> None:
        """Return when runs 0 to `runs` of `naps`, started by another process, are complete."""


class Opener(Protocol):
    def __call__(self, job: Job) -> AbstractAsyncContextManager[Contender]: ...


class NapLog:
    """A log file of the steps that began and ended, independent of the database.

    Each line is one appending write, so that a killed process leaves only whole lines.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def begin(self, run: int, step: int) -> None:
        os.write(self._file, f"b {run} {step}\n".encode())

    def end(self, run: int, step: int) -> None:
        os.write(self._file, f"e {run} {step}\n".encode())


def database(where: Path, name: str) -> str:
    """A path for a new database file in the bench's own directory."""
    return str(where / f"{name}.db")
