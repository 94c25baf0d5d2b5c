"""Hostile settings in the processes that tests start. These processes record injected faults in a file."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .faults import Faults, Kind
from .settings import hostile, ordinary_lease

_SEED = "HOLDFAST_HOSTILE"
_COUNTS = "HOLDFAST_HOSTILE_COUNTS"
_LEASE = "HOLDFAST_HOSTILE_ORDINARY_LEASE"
_LOST = "a lease"
_SITE = str(Path(__file__).parent / "site")
_stack = ExitStack()


class _Noted(Faults):
    """Faults of a process that may be killed at any moment: each fault is written to the file when it happens."""

    def at(self, operation: str, kinds: frozenset[Kind]) -> tuple[Kind | None, float]:
        kind, how = super().at(operation, kinds)
        if kind is not None:
            _note(f"{kind.value} {operation}")
        return kind, how

    def lease_lost(self) -> None:
        _note(_LOST)


def _note(line: str) -> None:
    with Path(os.environ[_COUNTS]).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def begin() -> None:
    """Apply hostile settings in a process that a test has started."""
    faults = _Noted(int(os.environ[_SEED]))
    os.register_at_fork(after_in_child=lambda: faults.begin(str(os.getpid())))
    _stack.enter_context(hostile(faults))
    if os.environ.get(_LEASE):
        _stack.enter_context(ordinary_lease())


class ChildProcesses:
    """Applies hostile settings to processes that are started during the context, through environment variables."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._before = dict(os.environ)
        self._folder = tempfile.TemporaryDirectory(prefix="hostile-")
        self._counts = Path(self._folder.name) / "counts"

    def __enter__(self) -> ChildProcesses:
        paths = [_SITE, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ |= {_SEED: str(self._seed), _COUNTS: str(self._counts), "PYTHONPATH": os.pathsep.join(paths)}
        return self

    def __exit__(self, *_error: object) -> None:
        for name in (_SEED, _COUNTS, "PYTHONPATH"):
            os.environ.pop(name, None)
            if name in self._before:
                os.environ[name] = self._before[name]
        self._folder.cleanup()

    @contextmanager
    def ordinary_lease(self) -> Iterator[None]:
        os.environ[_LEASE] = "1"
        try:
            yield
        finally:
            del os.environ[_LEASE]

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((kind, operation) for kind, operation in map(str.split, self._lines()) if kind in list(Kind))

    def leases_lost(self) -> int:
        return self._lines().count(_LOST)

    def _lines(self) -> list[str]:
        return self._counts.read_text().splitlines() if self._counts.exists() else []
