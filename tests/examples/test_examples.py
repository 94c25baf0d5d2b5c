"""Every example runs as a program of its own and prints the expected output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED = {
    "stream_tokens.py": [
        "1 attempt 1: What",
        "2 attempt 1: is",
        "-- reconnected",
        "3 attempt 1: it?",
        "4 attempt 2: What",
        "5 attempt 2: is",
        "6 attempt 2: it?",
        "7 attempt 2: Forty",
        "8 attempt 2: two",
        "9 attempt 2: .",
        "output: What is it? Forty two .",
        "progress: ['thinking', 'done']",
    ],
    "pydantic_ai_approval.py": [
        "waiting for an event of type 'approval'",
        "I paid 7 coins",
        "['model', 'model', 'model', 'pay', 'price of a bolt', 'price of a nut']",
        "streamed: I paid 7 coins",
    ],
    "fastapi_orders.py": [
        "202 /api/workflows/fulfil/instances/o-7",
        "200 payment of 125",
        "['id: 1', 'event: end']",
    ],
    "flask_orders.py": [
        "202 ACCEPTED",
        "payment of 125",
        "['begun']",
    ],
    "mcp_repair.py": [
        "payment-3: the gateway is down",
        "payment of 3",
        "payment of 7",
        "assistant start pay None",
        "assistant retry pay the gateway is up again",
    ],
    "agent_loop.py": [
        "stopped after 3 model calls",
        "answer from 4 facts",
        "model calls in all: 5, tool calls: 4",
        "log lines written again by the replay: 2",
    ],
    "django_shop.py": [
        "the card was refused; runs: 0",
        "payment of order 1",
        "orders: [(1, 1)]",
    ],
    "api_quota.py": [
        "sunny in city 9",
        "calls at the same time: at most 2",
        "[('weather api', 5)]",
    ],
    "debounced_reindex.py": [
        "waiting for its start at 2030-01-01 00:00:14 UTC",
        "indexed 10 products in 1 run",
    ],
    "tenants.py": [
        "complete",
        "the small tenant was served at positions [1, 3]",
        "pages in all: 202",
    ],
    "large_report.py": [
        "1642641 bytes, the largest part in memory: 1048576",
        "the recorded result: ['id', 'sha256', 'size']",
    ],
    "encrypted_values.py": [
        "characters: 201490",
        "params: {'owner': 'ann', 'token': '[secret]'}",
        "plain text in the files: False",
        "blobs: 1",
        "with both keys: 201490",
        "with the new key only: the value is encrypted with key 'k1', which this process does not have",
    ],
    "four_ways.py": [
        "outbox: press.started {'graph': 'monday-press'}",
        "published: 24 words; a summary of 114 characters, approved by the editor",
        "chain    complete PREPARE DONE, ASSEMBLE DONE, PUBLISH DONE",
        "graph    complete fetch ok, count_words ok, count_words[0] ok, count_words[1] ok, summarize ok, filed ok",
        "workflow complete ask_model completed, approval completed",
    ],
    "idempotent_payments.py": [
        "receipt for invoice-1-0",
        "attempts: 3, payments at the bank: 1",
        "declined: 5000 is over the limit",
        "failed: 5000 is over the limit",
    ],
    "langgraph_graph.py": [
        "waiting for an event of type 'resume'",
        "Dear Ann, see you on Monday",
        "calls: ['draft', 'send']",
    ],
    "nightly_report.py": [
        "nightly-20300101T020000Z complete: 2029-12-31, 10 in all",
        "nightly-20300102T020000Z complete: 2030-01-01, 20 in all",
        "nightly-20300103T020000Z complete: 2030-01-02, 30 in all",
        "backfilled 2, next 2030-01-04 02:00 UTC",
    ],
    "openai_agents_handoff.py": [
        "waiting for an event of type 'approval'",
        "Dear Ann, we have refunded 3 coins.",
        "model requests: 3",
        "['clerk.model', 'approval 1 for call-1', 'clerk.refund', 'clerk.model#2', 'writer.model']",
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
    "processes/ask_status.py": [
        "from outside: {'status': 'processing', 'progress': 75}",
        "from a run: {'status': 'processing', 'progress': 75}",
        "rejected: not for you",
        "no answer in time",
        "stopped",
    ],
    "processes/attributes.py": [
        "of ann: ['order-1', 'order-2']",
        "of 100 and more: ['order-2', 'order-3']",
        "both: ['order-2']",
        "from the web: ['order-1', 'order-2', 'order-3']",
        "shipped: ['order-3'] processing: ['order-1', 'order-2']",
        "{'notes': 'priority customer', 'source': 'web'}",
    ],
    "processes/cancel_deadline.py": [
        "RunCancelledError",
        "RunTerminatedError",
        "stopped by myself: closing time",
        "released: ['tidy']",
    ],
    "processes/child_errors.py": [
        "NoCustomerError: no customer c-1 (NotFound, {'id': 'c-1'}), because of NoCustomerError: no customer c-1",
        "LookupError: cannot continue (Internal, None), because of NoCustomerError: no customer c-2",
        "exit: NotFound: no customer c-3",
    ],
    "processes/context_values.py": [
        "user user-1",
        "steps ['charged for tenant-1', 'audited req-abc']",
        "child {'user_id': 'robot', 'tenant': 'tenant-1', 'request_id': 'req-abc'}",
    ],
    "processes/counter.py": [
        "increment: ack",
        "increment: ok 6",
        "decrement: nak would be negative",
        "increment: nak amount must be a number",
        "finish: ok finishing",
        "final value: 6",
    ],
    "processes/cron.py": [
        "waiting for its start at 2030-01-01 06:00:00 UTC",
        "run 0 at Tue 06:00",
        "run 1 at Tue 12:00",
        "run 2 at Fri 12:00",
        "run 3 at Fri 18:00",
        "4 reports, terminated: no more reports",
        "waiting for its start at 2030-01-07 08:30:00 UTC",
    ],
    "processes/http_start.py": [
        "202 order/order-7",
        "409 None",
        "order 7 of request req-1",
    ],
    "processes/inbox.py": [
        "{'order': 'o-1', 'status': 'approved'}",
        "['no use for comment']",
        "{'order': 'o-2', 'status': 'cancelled', 'reason': 'too late'}",
    ],
    "processes/info_and_continue.py": [
        "account/ann, run 0, attempt 1: balance 0",
        "account/ann, run 1, attempt 1: balance 10",
        "account/ann, run 2, attempt 1: balance 20",
        "in the end: 25",
        "messages by run: [10, 10, 6]",
    ],
    "processes/links.py": [
        "long_work/short ended: 3 iterations",
        "link down: long_work/trapped: the run was terminated (enough)",
        "exit: long_work/trapped: the run was terminated (enough)",
        "LinkDownError linked run long_work/partner ended terminated",
    ],
    "processes/order.py": [
        "{'status': 'completed', 'payment': 'payment-a', 'tracking': 'tracking-a'}",
        "{'status': 'failed', 'error': 'card declined'}",
        "{'status': 'failed', 'error': 'no address', 'refund': 'payment-c refunded'}",
    ],
    "processes/ping_pong.py": [
        "{'ok': True, 'received': [0, 2, 4]}",
        "3 pings answered",
        "{'ok': False, 'error': 'run pong/table-2 does not exist'}",
    ],
    "processes/saga.py": [
        "tracking to Kiel",
        "   reserve_inventory charge_payment ship",
        "failed: card declined",
        "   reserve_inventory charge_payment release_inventory",
        "failed: too far away",
        "   reserve_inventory charge_payment ship refund_payment release_inventory",
    ],
    "processes/spawn_monitored.py": [
        "hello ann from a child of one_after_the_other/p-1",
        "greet/greet-bob: hello bob from a child of at_once/p-2",
        "greet/greet-cem: hello cem from a child of at_once/p-2",
        "['hello dana from a child of gathered/p-3', 'hello eli from a child of gathered/p-3']",
        "['complete', 'complete']",
    ],
    "processes/spawn_named.py": [
        "same run: True",
        "run order/order-1 exists already",
        "tea shipped",
        "run number 1",
        "bread shipped",
        "bread shipped",
        "cake shipped",
        "instance 'order-2' of 'order' exists already (complete)",
    ],
    "processes/start_options.py": [
        "waiting for its start at 2030-01-01 00:05:00 UTC",
        "sleeping in 'delivery' on attempt 2",
        "teapot on attempt 3",
        "run_timeout: 'soon' cannot be read as a duration",
    ],
    "processes/startup_messages.py": [
        "the same run: True",
        "counted to 10",
        "increment {'amount': 2} by listen increment",
        "increment {'amount': 1} by listen increment",
        "increment {'amount': 4} by listen increment",
        "increment {'amount': 3} by listen increment",
        "finish None by listen finish",
    ],
    "processes/step_errors.py": [
        "reserve: OutOfStockError: no tea left (kind NotFound, retryable False, details {'item': 'tea'}, attempts 1)",
        "unreliable: GatewayDownError: no answer (kind Internal, retryable None, details None, attempts 3)",
        "once: GatewayDownError: no answer (kind Internal, retryable None, details None, attempts 1)",
        "{'reserve': 1, 'unreliable': 4}",
    ],
    "processes/timers.py": [
        "hours slept: 30.0",
        "['00:00:50 good dog', '00:01:50 bites']",
        "['01:00', '02:00', '03:00']",
    ],
    "processes/topics.py": [
        "3 jobs",
        "{'job': 1, 'result': 'done: wash'}",
        "{'job': 2, 'result': 'done: dry'}",
        "{'job': 3, 'result': 'done: iron'}",
    ],
    "processes/versioning.py": [
        "old order paid the old way",
        "new order paid the new way",
        "[('payment-v2', 2)]",
    ],
    "processes/worker_pool.py": [
        "total: 42",
        "by worker: {1: [1, 4], 2: [2, 5], 3: [3, 6]}",
    ],
    "simulate_a_charge.py": [
        "a step that is not safe to run twice: 'charge'",
        "The world differs from that of the run without faults.",
        "  without faults: [125]",
        "  now:            [125, 125]",
        "'charge' was called more than once: returned 'paid 125', then returned 'paid 125'",
        "order/simulated: is started",
        "order/simulated: step 'charge' is called",
        "order/simulated: step 'charge' returned 'paid 125'",
        "worker 2: stops for 79.9 s before the result is recorded, then continues",
        "order/simulated: step 'charge' is called again (call 2)",
        "order/simulated: step 'charge' returned 'paid 125'",
        "order/simulated: returned 'paid 125'",
        "repaired: 50 seeds, 0 findings",
    ],
    "sqlalchemy_orders.py": [
        "the card was refused: neither the order nor its run is stored",
        "4 bolt left",
        "orders: 1 runs: 1",
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

FAILING = {
    "mcp_repair.py",
    "idempotent_payments.py",
    "processes/child_errors.py",
    "processes/order.py",
    "processes/saga.py",
    "processes/start_options.py",
    "processes/step_errors.py",
}
"""Examples in which steps and runs fail on purpose: the worker logs the failures with their tracebacks."""


def test_every_example_has_an_expected_output() -> None:
    assert sorted(EXPECTED) == sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py"))


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_its_expected_output(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == EXPECTED[name]
    if name in FAILING:
        assert "errored: " in done.stderr or "failed permanently" in done.stderr
        assert "never retrieved" not in done.stderr
    else:
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
