"""Repetitions of a test marked ``crash_everywhere``: each with new fixtures, and a crash after another commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from holdfast.testing.crashing_harness import CrashingHarness


def run_everywhere(
    item: pytest.Item,
    nextitem: pytest.Item | None,
    crash_point: pytest.StashKey[int | None],
    harness: pytest.StashKey[CrashingHarness],
) -> None:
    """Run the test without a crash, and then once for each commit of that run, until one of them fails.

    Only the last execution is reported, so that the test counts once.
    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = _run(item, crash_point, None)
    commits = item.stash[harness].commits if harness in item.stash else 0
    for point in range(1, commits + 1):
        if not all(report.passed for report in reports):
            break
        reports = _run(item, crash_point, point)
    last = _tear_down_module(item, nextitem)
    for report in [*reports, last] if last.failed else reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _run(item: pytest.Item, key: pytest.StashKey[int | None], point: int | None) -> list[pytest.TestReport]:
    """Run the test once. Its own fixtures are torn down, those of its module and session are kept."""
    item.stash[key] = point
    if isinstance(item, pytest.Function):
        item._initrequest()  # new fixtures; plugins that repeat failed tests do the same
    keep: Any = item.parent
    return runtestprotocol(item, nextitem=keep, log=False)


def _tear_down_module(item: pytest.Item, nextitem: pytest.Item | None) -> pytest.TestReport:
    """Tear down the fixtures of the module and the session that the next test does not use."""
    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), "teardown")
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report
