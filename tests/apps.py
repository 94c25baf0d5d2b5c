"""Fixtures that many folders use: an app on each kind of store, and a harness that runs it in virtual time.

Every test that takes ``make_app`` or ``h`` runs on both stores. Tests marked ``above_the_store`` run on SQLite only:
they test something in which the store has no part (refused arguments, channels, replay), or a behaviour that
other tests cover on both stores.

Tests that lose the worker after each commit do so after a sample of the commits, unless ``--long`` is given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest

from holdfast import Holdfast
from holdfast.testing import Harness
from postgres_harness import CleanSchemas, CleanStore

_MAX_CRASHES = {"sqlite": 2, "postgres": 1}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit the time of each test, so that a run that never ends does not delay the other tests for long."""
    for item in items:
        if isinstance(item, pytest.Function) and "store_kind" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(300))


class MakeApp(Protocol):
    """Creates apps on the test's own database."""

    def __call__(self, **options: Any) -> Holdfast: ...


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_kind" in metafunc.fixturenames:
        above = metafunc.definition.get_closest_marker("above_the_store") is not None
        metafunc.parametrize("store_kind", ["sqlite"] if above else ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_app(store_kind: str, tmp_path: Path) -> Iterator[MakeApp]:
    if store_kind == "sqlite":
        yield lambda **options: Holdfast(f"sqlite:///{tmp_path}/app.db", **options)
        return
    with CleanSchemas.one() as (url, schema):
        yield lambda **options: Holdfast(url, schema=schema, **options)


@pytest.fixture
def app() -> Holdfast:
    """An app for the harness, which has its own database."""
    return Holdfast("sqlite://")


@pytest.fixture
async def h(app: Holdfast, store_kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with Harness(app, seed=7, store=CleanStore if store_kind == "postgres" else None) as harness:
        if not request.config.getoption("--long"):
            random, max_crashes = Random(request.node.name), _MAX_CRASHES[store_kind]
            harness._crash_points = lambda commits: sorted(  # type: ignore[method-assign]
                random.sample(range(1, commits + 1), min(commits, max_crashes))
            )
        yield harness
