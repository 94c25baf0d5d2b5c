"""The pytest plugin, in projects of users: each test writes a small project and runs pytest on it in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SHOP = """
from holdfast import Context, Holdfast

app = Holdfast("sqlite:///shop.db")
calls = []


@app.step
async def charge(order: str) -> str:
    calls.append(order)
    return f"payment-{order}"


@app.step
async def ship(payment: str) -> str:
    return f"shipped-{payment}"


@app.workflow
async def fulfil(ctx: Context, order: str) -> str:
    payment = await charge(order)
    ctx.log.info("charged")
    await ctx.sleep("cool off", "1 hour")
    event = await ctx.wait_for_event("approval", type="approval", payload=str)
    return f"{await ship(payment)} by {event.payload}"


@app.workflow
async def forgetful(ctx: Context, order: str) -> int:
    calls.append(order)  # not a step: it happens again on every replay
    await charge(order)
    await ctx.sleep("pause", 1)
    return len(calls)
"""

CHARGING = """

@app.workflow
async def charging(ctx: Context, order: str) -> str:
    payment = await charge(order)
    await ctx.sleep("pause", 1)
    return payment
"""

ASYNCIO = '[tool.pytest.ini_options]\nasyncio_mode = "auto"\nholdfast_app = "shop:app"\npythonpath = ["."]\n'


@dataclass
class Project:
    folder: Path

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def pytest(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:schemathesis",
             "-p", "no:hypothesispytest", "-p", "no:langsmith_plugin", *arguments],
            cwd=self.folder, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.write("shop.py", SHOP)
    project.write("pyproject.toml", ASYNCIO)
    return project


DRIVEN = """
import pytest
import shop


async def test_a_run_is_driven_by_the_open_harness(harness):
    run = await harness.start(shop.fulfil, "o-1")
    await harness.advance("1 hour")
    await run.send_event("approval", "ann")
    await harness.run_until_idle()
    assert await run.result() == "shipped-payment-o-1 by ann"


class TestInAClass:
    async def test_the_harness_is_open(self, harness):
        assert (await harness.app.list()).items == []


@pytest.mark.crash_everywhere
async def test_an_order_survives_a_crash_after_every_commit(harness, counted):
    run = await harness.start(shop.fulfil, "o-1")
    await harness.advance("1 hour")
    await run.send_event("approval", "ann")
    await harness.run_until_idle()
    assert await run.result() == "shipped-payment-o-1 by ann"
    counted.append(harness.crashed)


@pytest.fixture(scope="session")
def executions():
    return []


@pytest.fixture
def counted(executions):
    fresh = []
    yield fresh
    executions.append(fresh)


def test_every_execution_had_fixtures_of_its_own(executions):
    assert len(executions) == 1 + 4  # four commits
    assert [fresh for fresh in executions] == [[False], [True], [True], [True], [True]]
"""

FAILING = """
import pytest
import shop


async def test_that_fails(harness):
    run = await harness.start(shop.fulfil, "o-1", id="o-1")
    await harness.advance("1 hour")
    assert (await run.status()).status == "complete"


@pytest.mark.crash_everywhere
async def test_that_fails_after_a_crash(harness):
    shop.calls.clear()
    assert await harness.run(shop.forgetful, "o-1") == 2
    assert len(shop.calls) == 2


@pytest.mark.simulate(seeds=3)
async def test_of_a_correct_workflow(simulation):
    report = await simulation(shop.fulfil, "o-1", events=[("approval", "ann")])
    assert report.ok
"""


EXPORTING = """
import shop


async def test_export(harness):
    run = await harness.start(shop.fulfil, "o-1")
    await harness.run_until_idle()
    await run.export("runs/order.json")
"""


def test_the_fixtures_markers_stories_and_exports_work_with_pytest_asyncio(project: Project) -> None:
    """One process of pytest for all of it, because a process takes most of its time to import."""
    project.write("test_driven.py", DRIVEN)
    project.write("test_failing.py", FAILING)
    project.write("test_exporting.py", EXPORTING)
    (project.folder / "runs").mkdir()

    code, output = project.pytest("-q")

    assert code == 1
    assert "2 failed, 6 passed" in output
    assert {line.partition(" - ")[0] for line in output.splitlines() if line.startswith("FAILED")} == {
        "FAILED test_failing.py::test_that_fails", "FAILED test_failing.py::test_that_fails_after_a_crash",
    }  # fmt: skip
    assert "fulfil/o-1 (run 0) is waiting: waiting for an event" in output
    assert "do 'charge' completed: 'payment-o-1'" in output
    assert "log info: charged" in output
    assert "the worker was lost right after commit 1" in output
    _exported_runs_are_tests(project)


def _exported_runs_are_tests(project: Project) -> None:
    exported = (project.folder / "runs" / "order.json").read_text()
    assert {fact["key"] for fact in json.loads(exported)["facts"]} >= {"charge"}
    project.write("runs/renamed.json", exported.replace('"charge"', '"debit"'))
    project.write("pyproject.toml", ASYNCIO + 'holdfast_runs = ["runs"]\n')

    code, output = project.pytest("-q", "runs")

    assert (code, "1 failed, 1 passed" in output) == (1, True), output
    assert "renamed.json" in output
    assert "does not fit the code" in output


def test_the_harness_works_with_anyio(project: Project) -> None:
    project.write("pyproject.toml", '[tool.pytest.ini_options]\nholdfast_app = "shop:app"\npythonpath = ["."]\n')
    project.write(
        "test_shop.py",
        "import pytest, shop\n\npytestmark = pytest.mark.anyio\n\n\n"
        '@pytest.fixture\ndef anyio_backend():\n    return "asyncio"\n\n\n'
        "async def test_open(harness):\n    run = await harness.start(shop.fulfil, 'o-1')\n"
        "    await harness.run_until_idle()\n    assert (await run.status()).status == 'waiting'\n\n\n"
        "seen = []\n\n\n@pytest.mark.crash_everywhere\nasync def test_crash(harness):\n"
        "    assert await harness.run(shop.charging, 'o-1') == 'payment-o-1'\n    seen.append(harness.crashed)\n\n\n"
        "def test_after_each_commit():\n    assert seen[0] is False and len(seen) > 1 and all(seen[1:])\n\n\n"
        "@pytest.mark.simulate(seeds=2)\nasync def test_simulated(simulation):\n"
        "    assert (await simulation(shop.charging, 'o-1')).ok\n",
    )
    project.write("shop.py", SHOP + CHARGING)

    code, output = project.pytest("-q", "-p", "no:asyncio")

    assert code == 0, output
    assert "4 passed" in output


def test_a_test_without_a_configured_app_fails_with_the_option_that_names_one(project: Project) -> None:
    project.write("pyproject.toml", '[tool.pytest.ini_options]\nasyncio_mode = "auto"\n')
    project.write("test_shop.py", "async def test_it(harness):\n    pass\n")

    code, output = project.pytest("-q")

    assert code == 1
    assert 'holdfast_app = "shop:app"' in output


def test_loading_the_plugin_does_not_import_the_engine() -> None:
    check = (
        "import sys, holdfast.testing.plugin; "
        "print([name for name in sys.modules if name.startswith(('holdfast.app', 'holdfast.runner', 'pydantic'))])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
