"""The same in the processes that tests start. What is injected there is counted in a file."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from .faults import Faults, Kind
from .settings import hostile

_SEED = "HOLDFAST_HOSTILE"
_COUNTS = "HOLDFAST_HOSTILE_COUNTS"
_SITE = str(Path(__file__).parent / "site")
_stack = ExitStack()


class _Noted(Faults):
    """Faults of a process that may be killed at any moment: each is noted when it happens."""

    def at(self, operation: str, kinds: frozenset[Kind]) -> tuple[Kind | None, float]:
        kind, how = super().at(operation, kinds)
        if kind is not None:
            with Path(os.environ[_COUNTS]).open("ab", buffering=0) as file:
                file.write(f"{kind.value} {operation}\n".encode())
        return kind, how


def begin() -> None:
    """In a process that a test started."""
    faults = _Noted(int(os.environ[_SEED]))
    os.register_at_fork(after_in_child=lambda: faults.begin(str(os.getpid())))
    _stack.enter_context(hostile(faults))


class Elsewhere:
    """For the processes that are started while it is entered."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._before = dict(os.environ)
        self._folder = tempfile.TemporaryDirectory(prefix="hostile-")
        self._counts = Path(self._folder.name) / "counts"

    def __enter__(self) -> Elsewhere:
        paths = [_SITE, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ |= {_SEED: str(self._seed), _COUNTS: str(self._counts), "PYTHONPATH": os.pathsep.join(paths)}
        return self

    def __exit__(self, *_error: object) -> None:
        for name in (_SEED, _COUNTS, "PYTHONPATH"):
            os.environ.pop(name, None)
            if name in self._before:
                os.environ[name] = self._before[name]
        self._folder.cleanup()

    def counts(self) -> Counter[tuple[str, str]]:
        if not self._counts.exists():
            return Counter()
        return Counter((kind, operation) for kind, operation in map(str.split, self._counts.read_text().splitlines()))
