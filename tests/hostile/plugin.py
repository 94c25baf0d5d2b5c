"""``pytest --hostile``: runs each test under hostile settings and faults, and reports the injected faults at the end.

On a busy machine a lease of 50 ms may expire, and steps are then called again. The engine promises at least one call,
but most tests expect exactly one. A test that fails and in which a lease expired is therefore run again with the
ordinary lease and otherwise the same settings, and must then pass.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from .child_processes import ChildProcesses
from .faults import Faults
from .settings import hostile, ordinary_lease

_SLOWER = 4
"""The factor by which the time limits of tests are multiplied."""


class Hostile:
    """The pytest plugin, one in each process of pytest."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.faults = Faults(seed)
        self.again: list[str] = []
        """Tests that were run again."""
        self.tests = 0
        self._in_children: Counter[tuple[str, str]] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self) -> Iterator[None]:
        yield
        self._stack = ExitStack()
        self._stack.enter_context(hostile(self.faults))
        self._children = self._stack.enter_context(ChildProcesses(self.seed))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            timeout = item.get_closest_marker("timeout")
            seconds = timeout.args[0] if timeout is not None else float(item.config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(_SLOWER * seconds), append=False)
            mark = item.get_closest_marker("kind_settings")
            if mark is not None:
                item.add_marker(pytest.mark.skip(reason=f"not under hostile settings: {mark.args[0]}"))

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self.tests += 1
        before = self._children.leases_lost()
        reports = self._run(item, nextitem)
        lost = self.faults.leases_lost or self._children.leases_lost() > before
        if lost and any(report.failed for report in reports):
            self.again.append(item.nodeid)
            with ordinary_lease(), self._children.ordinary_lease():
                reports = self._run(item, nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        self.faults.begin(item.nodeid)
        item._initrequest()  # type: ignore[attr-defined]  # fixtures are made anew
        return runtestprotocol(item, nextitem=nextitem, log=False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._in_children = self._children.counts()
        self._stack.close()
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["hostile"] = json.dumps(self._found())

    def _found(self) -> dict[str, Any]:
        counts = [[*key, times] for key, times in self.faults.counts.items()]
        children = [[*key, times] for key, times in self._in_children.items()]
        return {
            "tests": self.tests, "again": self.again, "counts": counts, "children": children,
            "calls": dict(self.faults.calls),
        }  # fmt: skip


class Report:
    """Prints the faults that were injected in all processes."""

    def __init__(self, mine: Hostile) -> None:
        self._mine = mine
        self._others: list[dict[str, Any]] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        found = getattr(node, "workeroutput", {}).get("hostile")
        if found is not None:
            self._others.append(json.loads(found))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        found = [self._mine._found(), *self._others]
        counts, children = _sum(found, "counts"), _sum(found, "children")
        calls = sum((Counter(one["calls"]) for one in found), Counter[str]())
        again = [test for one in found for test in one["again"]]
        line = terminalreporter.write_line
        terminalreporter.section(f"hostile settings, seed {self._mine.seed}")
        for operation in sorted({*calls, *(operation for operation, _ in children)}):
            line(
                f"{operation:>14} {calls[operation]:>8} calls: {_kinds(counts, operation)}; "
                f"in processes of tests: {_kinds(children, operation)}"
            )
        total = counts.total() + children.total()
        line(f"{total} faults in {sum(one['tests'] for one in found)} tests")
        line(f"{len(again)} run again with the ordinary lease, because a lease of 50 ms expired in them")
        for test in again:
            line(f"    {test}")


def _sum(found: list[dict[str, Any]], what: str) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for one in found:
        for kind, operation, times in one[what]:
            counts[operation, kind] += times
    return counts


def _kinds(counts: Counter[tuple[str, str]], operation: str) -> str:
    return ", ".join(f"{counts[found, kind]} {kind}" for found, kind in sorted(counts) if found == operation) or "none"


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--hostile", action="store_true", help="no cache, no notifications, short leases, failing stores")
    parser.addoption("--hostile-seed", type=int, default=1, help="which calls fail with --hostile")


def configure(config: pytest.Config) -> None:
    if config.getoption("--hostile"):
        plugin = Hostile(config.getoption("--hostile-seed"))
        config.pluginmanager.register(plugin, "hostile")
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Report(plugin), "hostile-report")
