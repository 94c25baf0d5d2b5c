"""The report of ``holdfast check``: counts, examples, text and the format of JUnit."""

from __future__ import annotations

from xml.etree import ElementTree

from holdfast.checking.report import CheckReport
from holdfast.kernel.inspection import Difference, DifferenceKind

PARKED = Difference(DifferenceKind.PARKED, "the code no longer has the step 'pay'")
STEP = Difference(DifferenceKind.STEP, "the code calls 'charge'")


def report_of(*runs: tuple[str, list[Difference]]) -> CheckReport:
    report = CheckReport()
    for name, differences in runs:
        report.of(name.split("/")[0]).add(name, 0, differences)
    return report


def test_a_report_without_runs_states_that_there_are_none() -> None:
    report = CheckReport()

    assert report.ok
    assert report.text() == "there are no open runs"


def test_runs_are_counted_once_for_each_kind_of_difference() -> None:
    report = report_of(("shop/a", []), ("shop/b", [PARKED, STEP, PARKED]), ("shop/c", [PARKED]), ("mail/d", []))

    assert not report.ok
    assert report.text().splitlines() == [
        "mail: 1 run checked, 1 fit",
        "shop: 3 runs checked, 1 fit",
        "  2 would be parked:",
        "    shop/b, shop/c: the code no longer has the step 'pay'",
        "  1 would call a step again:",
        "    shop/b: the code calls 'charge'",
        "2 of 4 open runs fit the code",
    ]


def test_the_text_shows_three_messages_and_three_runs_of_each() -> None:
    messages = [Difference(DifferenceKind.STEP, f"the code calls step {n}") for n in range(5)]
    report = report_of(*((f"shop/{n}-{m}", [message]) for n, message in enumerate(messages) for m in range(4)))

    lines = report.text().splitlines()

    assert lines[2] == "    shop/0-0, shop/0-1, shop/0-2 …: the code calls step 0"
    assert lines[5] == "    and 2 more messages"


def test_merged_reports_count_the_runs_of_all_and_keep_a_bounded_number_of_examples() -> None:
    report = CheckReport()
    for part in range(3):
        other = report_of(*((f"shop/{part}-{n}", [PARKED]) for n in range(10)), (f"part{part}/x", []))
        other.sampled = part == 1
        report.merge(other)

    shop = report.of("shop")
    assert (shop.checked, shop.fits, shop.counts[DifferenceKind.PARKED]) == (30, 0, 30)
    assert len(shop.examples[DifferenceKind.PARKED]) == 20
    assert report.text().splitlines()[-1] == "3 of 33 checked runs (a sample) fit the code"


def test_the_junit_report_has_a_failed_test_for_each_example() -> None:
    odd = Difference(DifferenceKind.VALUE, 'the value "<a>" & \x00 does not fit')
    report = report_of(("shop/a", []), ("shop/b", [PARKED, odd]))

    suites = ElementTree.fromstring(report.junit())

    [suite] = suites
    assert suite.attrib == {"name": "holdfast check shop", "tests": "3", "failures": "2"}
    failures = [(case.get("name"), failure.get("type"), failure.text) for case in suite for failure in case]
    assert failures == [
        ("shop/b run 0", "parked", "the code no longer has the step 'pay'"),
        ("shop/b run 0", "value", 'the value "<a>" & ? does not fit'),
    ]
