"""Every example runs by itself, as a user would run it, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED = {
    "agent_loop.py": [
        "stopped after 3 model calls",
        "answer from 4 facts",
        "model calls in all: 5, tool calls: 4",
        "log lines written again by the replay: 2",
    ],
    "idempotent_payments.py": [
        "receipt for invoice-1-0",
        "attempts: 3, payments at the bank: 1",
        "declined: 5000 is over the limit",
        "failed: 5000 is over the limit",
    ],
    "order_with_approval.py": [
        "order-a: invoice for payment-a: 125 EUR",
        "order-a again: invoice for payment-a: 125 EUR",
        "order-b is waiting for an event of type 'approval' in 'approval'",
        "order-b: payment-b refunded",
        "  charge         do           completed",
        "  cool off       sleep        completed",
        "  approval       waitForEvent completed",
        "  write_invoice  do           completed",
    ],
    "parallel_fetch.py": [
        "sum: 360",
        "steps: 8 - page-3 took 2 attempts",
        "fastest: near",
    ],
    "step_transaction.py": [
        "seat 1 for ann",
        "seat 2 for bob",
        "no seat for cem",
        "rows: [(1, 'ann'), (2, 'bob')]",
    ],
    "test_a_long_sleep.py": [
        "two years of subscriptions, both tests passed",
    ],
}


def test_every_example_is_known_here() -> None:
    assert sorted(EXPECTED) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", EXPECTED)
def test_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == EXPECTED[name]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
