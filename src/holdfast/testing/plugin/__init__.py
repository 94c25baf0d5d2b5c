"""The pytest plugin: fixtures (``holdfast_app``, ``harness``, ``simulation``), markers, and exported runs as tests.

pytest loads plugins before it measures coverage, and for every project in the environment. This module therefore
imports nothing of the engine; the modules beside it are imported when a test uses them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.testing.crashing_harness import CrashingHarness
    from holdfast.testing.plugin.exported import ExportedRuns
    from holdfast.testing.simulation.report import SimulationReport

_HARNESS = pytest.StashKey["CrashingHarness"]()
_STORY = pytest.StashKey[str]()
_CRASH_POINT = pytest.StashKey["int | None"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption("--holdfast-seed", type=int, metavar="SEED", help="run only this seed in tests marked `simulate`")
    parser.addini("holdfast_app", "the app under test, as MODULE:APP, for the fixture of this name")
    parser.addini("holdfast_runs", "folders with exported runs (*.json), each of which becomes a test", type="paths")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "crash_everywhere: run the test again for each commit, losing the worker right after that commit"
    )
    config.addinivalue_line("markers", "simulate(seeds=50, first=1): the seeds of the fixture `simulation`")


# --- fixtures


@pytest.fixture
def holdfast_app(pytestconfig: pytest.Config) -> Holdfast:
    """The app under test: ``holdfast_app = "shop:app"`` in pytest's configuration, or a fixture of your own."""
    return configured_app(pytestconfig)


def configured_app(config: pytest.Config) -> Holdfast:
    target = str(config.getini("holdfast_app"))
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise pytest.UsageError(
            'name the app under test in pytest\'s configuration, such as holdfast_app = "shop:app", '
            "or define a fixture holdfast_app that returns it"
        )
    app: Holdfast = getattr(importlib.import_module(module), attribute)
    return app


@pytest.fixture
def harness(request: pytest.FixtureRequest, holdfast_app: Holdfast) -> CrashingHarness:
    """A ``Harness`` of the app under test. It is open while an async test runs; a plain test opens it itself."""
    from holdfast.testing.crashing_harness import CrashingHarness

    node = request.node
    node.stash[_HARNESS] = made = CrashingHarness(holdfast_app)
    made.crash_after(node.stash.get(_CRASH_POINT, None))
    return made


@pytest.fixture
def simulation(
    request: pytest.FixtureRequest, holdfast_app: Holdfast, pytestconfig: pytest.Config
) -> Callable[..., Any]:
    """``simulate`` for the app under test, with the seeds of the marker: ``await simulation(workflow, params)``."""
    from holdfast.testing.simulation.simulate import simulate

    marker = request.node.get_closest_marker("simulate")
    seeds: dict[str, Any] = {"seeds": 50, **(marker.kwargs if marker is not None else {})}
    if (seed := pytestconfig.getoption("--holdfast-seed")) is not None:
        seeds = {"seed": seed}

    async def run(workflow: Any, params: Any = None, **options: Any) -> SimulationReport:
        return await simulate(holdfast_app, workflow, params, **{**seeds, **options})

    return run


# --- tests with an open harness


def pytest_itemcollected(item: pytest.Item) -> None:
    """Wrap an async test that uses ``harness``, so that the harness is opened and closed on the test's own event loop.

    It works with every plugin that runs async tests, because such a plugin calls the test function.
    """
    if isinstance(item, pytest.Function) and "harness" in item.fixturenames and inspect.iscoroutinefunction(item.obj):
        item.obj = _with_open_harness(item, item.obj)


def _with_open_harness(item: pytest.Item, test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    async def opened(*args: Any, **kwargs: Any) -> Any:
        harness = item.stash.get(_HARNESS, None)
        if harness is None:  # the fixture of this name is the project's own
            return await test(*args, **kwargs)
        async with harness:
            try:
                return await test(*args, **kwargs)
            except Exception:
                from holdfast.testing.run_story import run_stories

                item.stash[_STORY] = await run_stories(harness)
                raise

    return opened


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the runs of the harness to the report of a failed test."""
    report = yield
    if report.when == "call" and report.failed:
        if point := item.stash.get(_CRASH_POINT, None):
            report.sections.append(("holdfast crash", f"the worker was lost right after commit {point}"))
        if story := item.stash.get(_STORY, ""):
            report.sections.append(("holdfast runs", story))
    return report


# --- crash_everywhere


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test marked ``crash_everywhere`` once without a crash, and then once for each of its commits."""
    if item.get_closest_marker("crash_everywhere") is None:
        return None
    from holdfast.testing.plugin.crashes import run_everywhere

    run_everywhere(item, nextitem, _CRASH_POINT, _HARNESS)
    return True


# --- exported runs


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ExportedRuns | None:
    folders = parent.config.getini("holdfast_runs")
    if file_path.suffix != ".json" or not any(file_path.is_relative_to(folder) for folder in folders):
        return None
    from holdfast.testing.plugin.exported import ExportedRuns

    return ExportedRuns.from_parent(parent, path=file_path)
