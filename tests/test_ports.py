"""The engine reaches time, randomness and threads only through its ports, so that it can run in virtual time.

The check reads the source code. It follows every name of a forbidden module or function through the imports, so an
alias does not hide it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "holdfast"

# forbidden name -> what to use instead
FORBIDDEN = {
    "time": "Clock.now() or Clock.monotonic()",
    "datetime.datetime.now": "Clock.now()",
    "datetime.datetime.utcnow": "Clock.now()",
    "datetime.datetime.today": "Clock.now()",
    "datetime.date.today": "Clock.now()",
    "random": "Randomness.random()",
    "secrets": "Randomness.bytes()",
    "uuid.uuid1": "Randomness.uuid4()",
    "uuid.uuid4": "Randomness.uuid4()",
    "os.urandom": "Randomness.bytes()",
    "os.getrandom": "Randomness.bytes()",
    "threading.Thread": "ports.start_thread() or Spawn",
    "threading.Timer": "Timers.call_at()",
    "_thread.start_new_thread": "ports.start_thread() or Spawn",
    "concurrent.futures.ThreadPoolExecutor": "Spawn",
    "concurrent.futures.thread.ThreadPoolExecutor": "Spawn",
    "concurrent.futures.ProcessPoolExecutor": "Spawn",
    "multiprocessing": "Spawn",
    "asyncio.to_thread": "Spawn.function()",
}

# where forbidden names are allowed: in the ports themselves, and in the command line, which is not part of the engine
EXEMPT = {"ports.py", "cli"}
ALLOWED = {
    # a seeded generator is deterministic; a step called outside a run has no engine whose ports it could use
    "workflow": {"random.Random", "asyncio.to_thread"},
    "core": {"random.Random"},
    "testing": {"random.Random"},
    "ext": {"asyncio.to_thread"},  # connections of an adapter, which no run waits for
}


def test_the_engine_uses_time_randomness_and_threads_only_through_its_ports() -> None:
    offences = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {name} is for holdfast/ports.py only; use {instead}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in EXEMPT
        for line, name, instead in _offences(path.read_text(), path.relative_to(PACKAGE).parts[0])
    ]
    assert not offences, "\n" + "\n".join(offences)


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "import time as clock\nclock.monotonic()",
        "from time import perf_counter",
        "from datetime import datetime\ndatetime.now()",
        "from datetime import datetime as dt\nnow = dt.utcnow",
        "import datetime\ndatetime.date.today()",
        "import random\nrandom.random()",
        "from random import Random, choice",
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid4",
        "from os import urandom",
        "import os as o\no.urandom(3)",
        "def late():\n    import secrets",
        "import threading\nthreading.Thread()",
        "from concurrent.futures import ThreadPoolExecutor",
        "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()",
        "import asyncio\nasync def f():\n    await asyncio.to_thread(print)",
    ],
)
def test_every_bypass_of_the_ports_is_detected(source: str) -> None:
    assert list(_offences(source, "kernel"))


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import UTC, datetime, time, timedelta\ntime(1)\ndatetime(2024, 1, 1)",
        "import threading\nthreading.Lock()\nthreading.current_thread()",
        "import uuid\nuuid.UUID(int=1)",
        "import os\nos.getpid()",
        "import asyncio\nasyncio.sleep(1)",
        "clock.time()\nself.random.random()",
        "def delay(random): return random * 2",
    ],
)
def test_similar_names_that_are_harmless_are_allowed(source: str) -> None:
    assert not list(_offences(source, "kernel"))


@pytest.mark.parametrize("source", ["from random import Random\nRandom(7)", "import random\nrandom.Random(7)"])
def test_a_seeded_generator_is_allowed_where_replays_and_tests_need_one(source: str) -> None:
    assert not list(_offences(source, "workflow"))
    assert list(_offences(source, "runner"))


def _offences(source: str, part: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and replacement of each forbidden name that ``source`` imports or uses."""
    tree = ast.parse(source)
    names = _imported_names(tree)
    for node in ast.walk(tree):
        for name in _used_names(node, names):
            instead = _replacement(name)
            if instead is not None and name not in ALLOWED.get(part, set()):
                yield getattr(node, "lineno", 0), name, instead


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """The full name behind each name that an import binds."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.update((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    return names


def _used_names(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """The full names that a node imports or uses as an attribute. ``import time`` alone is not a use."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name == "secrets")
    elif isinstance(node, ast.Attribute):
        parts = [node.attr]
        inner: ast.expr = node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in names:
            yield ".".join([names[inner.id], *reversed(parts)])


def _replacement(name: str) -> str | None:
    """The replacement of ``name``, which is forbidden or part of a forbidden module; None: it is allowed."""
    parts = name.split(".")
    return next(
        (FORBIDDEN[".".join(parts[:n])] for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in FORBIDDEN),
        None,
    )
