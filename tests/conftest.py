"""Options and fixtures of the whole test suite."""

from __future__ import annotations

import asyncio
import functools
import gc
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from importlib import metadata
from pathlib import Path

import httpx._transports.default as httpx_transports
import hypothesis
import pytest
import pytest_asyncio

from holdfast.store.sqlite import opening
from holdfast.workflow import machine

sys.path.insert(0, str(Path(__file__).parent))

import apps
import postgres_connections
import postgres_server
import promises
from hostile import plugin as hostile


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="test every crash point and more generated input (takes a while)"
    )
    hostile.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        gc.disable()  # until this process has collected all tests: a quarter of that time would be the collector's
    config.pluginmanager.register(apps)
    hostile.configure(config)
    postgres_connections.install()
    # A time limit for an example would measure the machine. Under CI, Hypothesis itself loads a profile without one.
    if hypothesis.settings.get_current_profile_name() == "default":
        slow = [hypothesis.HealthCheck.too_slow]
        hypothesis.settings.register_profile("holdfast", deadline=None, suppress_health_check=slow)
        hypothesis.settings.load_profile("holdfast")
    # A session that a shell started in the background ignores these signals, and so would the processes of its tests.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    # Each httpx client reads all certificate authorities, which takes longer than most requests.
    httpx_transports.create_ssl_context = functools.cache(httpx_transports.create_ssl_context)
    # Tests open thousands of new files: 8 MiB of zeros in each would be a tenth of the suite's processor time.
    opening._WAL_PREALLOCATED_BYTES = 256 * 1024


_LIBRARIES = (
    "pydantic-ai-slim", "openai-agents", "langgraph", "mcp", "fastapi", "django", "sqlalchemy", "psycopg", "flask",
    "zstandard", "cryptography", "obstore", "moto", "pytest-asyncio", "anyio",
)  # fmt: skip
"""Libraries with adapters; ``docs/adapters.md`` has the versions of the last run."""


def pytest_report_header() -> str:
    installed = {name: version for name in _LIBRARIES if (version := _version(name)) is not None}
    return "libraries: " + ", ".join(f"{name} {version}" for name, version in installed.items())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # not in the environment with the oldest dependencies
        return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    promises.check_names(items)
    mark_unmeasured(items)
    if not str(machine.__file__).endswith(".py"):
        skip_interpreted(items)


def skip_interpreted(items: list[pytest.Item]) -> None:
    for item in items:
        if (mark := item.get_closest_marker("interpreted")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"compiled build: {mark.args[0]}"))


MEASURED = {
    "chain", "checking", "client", "core", "ext", "flow", "graph", "inspection", "kernel", "payloads", "repair",
    "runner", "scenarios", "store", "streams", "telemetry", "workflow",
    "dashboard", "test_app.py", "test_doctor.py", "test_http_details.py", "test_http_repair.py", "test_mcp.py",
    "test_sync_client.py", "test_transfer.py",
}  # fmt: skip
"""Folders and files whose tests ``make check`` measures, as far as they need no PostgreSQL."""


_MEASURED_SETS = 8
"""Sets of parameters of one test that are measured: further sets run the same lines, at twice the time."""


def mark_unmeasured(items: list[pytest.Item]) -> None:
    """Mark the tests that run without coverage. Measuring all of them would double the time of the suite."""
    measured = Counter[str]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if (
            "postgres" in item.nodeid
            or measured[test] == _MEASURED_SETS
            or not MEASURED & {*item.path.relative_to(item.config.rootpath).parts}
        ):
            item.add_marker(pytest.mark.no_cover)
        else:
            measured[test] += 1


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freeze the objects of ten thousand collected tests, which each ``gc.collect()`` in a test would traverse.

    The engine makes no reference cycles (``runner/test_memory.py``), so the collector may run rarely.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


@pytest.fixture
def frozen_heap() -> None:
    """Freeze the objects of earlier tests, so that each ``gc.collect()`` in this one is fast."""
    gc.collect()
    gc.freeze()


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def close_shared_connections() -> AsyncIterator[None]:
    postgres_connections.keep_for(asyncio.get_running_loop())
    yield
    await postgres_connections.close_kept()
    postgres_server.close_loop_thread()
