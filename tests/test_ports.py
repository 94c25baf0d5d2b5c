"""The engine reaches time, chance and threads only through its ports.

That is what lets it run in virtual time. The check reads the source: every name that stands for a module
or function below is followed through its imports, so an alias does not hide it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "holdfast"

# what is forbidden -> what to use instead
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

# where a forbidden name is allowed after all: the ports themselves, and the command line above the engine
EXEMPT = {"ports.py", "cli"}
ALLOWED = {
    # a seeded generator is no source of chance; a step called outside any run has no engine around it
    "workflow": {"random.Random", "asyncio.to_thread"},
    "chain": {"random.Random"},
    "graph": {"random.Random"},
    # many seeds, each a world of its own
    "testing": {"random.Random", "concurrent.futures.ProcessPoolExecutor", "multiprocessing.get_context"},
}


def test_the_engine_reaches_the_world_only_through_its_ports() -> None:
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
def test_every_way_around_the_ports_is_noticed(source: str) -> None:
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
def test_what_only_looks_alike_is_allowed(source: str) -> None:
    assert not list(_offences(source, "kernel"))


@pytest.mark.parametrize("source", ["from random import Random\nRandom(7)", "import random\nrandom.Random(7)"])
def test_a_seeded_generator_is_allowed_where_replays_and_tests_need_one(source: str) -> None:
    assert not list(_offences(source, "workflow"))
    assert list(_offences(source, "runner"))


def _offences(source: str, part: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and remedy of each forbidden thing that ``source`` imports or uses."""
    tree = ast.parse(source)
    names = _imported_names(tree)
    for node in ast.walk(tree):
        for name in _mentions(node, names):
            instead = _remedy(name)
            if instead is not None and name not in ALLOWED.get(part, set()):
                yield getattr(node, "lineno", 0), name, instead


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """What each name bound by an import stands for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                names[one.asname or top] = one.name if one.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.update((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)
    return names


def _mentions(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """The things a node imports by name, or reaches as an attribute. ``import time`` alone does no harm."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{one.name}" for one in node.names)
    elif isinstance(node, ast.Import):
        yield from (one.name for one in node.names if one.name == "secrets")
    elif isinstance(node, ast.Attribute):
        parts = [node.attr]
        inner: ast.expr = node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in names:
            yield ".".join([names[inner.id], *reversed(parts)])


def _remedy(name: str) -> str | None:
    """What to use instead of ``name``, itself forbidden or part of a forbidden module."""
    parts = name.split(".")
    return next(
        (FORBIDDEN[".".join(parts[:n])] for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in FORBIDDEN),
        None,
    )
