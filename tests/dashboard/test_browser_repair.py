"""Actions that end, repeat and repair runs, in a real browser, on both stores.

Each test uses runs of its own on the server that the tests of a store share.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from browser_visit import visit

from holdfast import RunFailedError

if TYPE_CHECKING:
    from browser_visit import Served, Visit
    from playwright.async_api import Browser

FILL_BOTH = """() => {
  for (const [label, value] of [["Event type", "approval"], ["Reason", "by phone"]]) {
    const field = document.querySelector(`[aria-label='${label}']`);
    field.value = value;
    for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, { bubbles: true }));
  }
}"""


async def _menu(user: Visit, action: str) -> None:
    await user.page.click("[aria-label='More actions']")
    await user.page.click(f".menu >> text={action}…")


async def _confirm(user: Visit, reason: str) -> None:
    await user.page.fill("dialog label:has-text('Reason') input", reason)
    await user.page.click("dialog .primary")


async def _last_action(served: Served) -> tuple[str, str | None, str | None]:
    record = (await served.app.audit()).items[0]
    return record.action, record.target, record.reason


async def test_a_run_is_cancelled_with_a_reason(chromium: Browser, stored_shop: Served) -> None:
    async with visit(chromium, stored_shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.page.click("text=Cancel…")
        await user.sees("The code may clean up", "dialog")
        await _confirm(user, "out of stock")
        await user.sees("cancelled", ".badge")
    assert await _last_action(stored_shop) == ("cancel", "fulfil/o-1", "out of stock")


async def test_a_run_is_terminated_and_restarted(chromium: Browser, stored_shop: Served) -> None:
    async with visit(chromium, stored_shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.sees("waiting", ".badge")
        await _menu(user, "Terminate")
        await user.sees("Its code does not clean up", "dialog")
        await _confirm(user, "no longer needed")
        await user.sees("terminated", ".badge")

        await _menu(user, "Restart")
        await user.sees("Run 1 starts from the beginning", "dialog")
        await _confirm(user, "needed after all")
        await user.sees("waiting for an event", ".why")
        await user.page.select_option(".run-facts select", "0")
        assert "run=0" in user.page.url
    assert await _last_action(stored_shop) == ("restart", "fulfil/o-1", "needed after all")


async def test_an_errored_run_names_its_line_and_is_retried(chromium: Browser, stored_shop: Served) -> None:
    async with visit(chromium, stored_shop.url) as user:
        await user.open("runs?q=workflow:fulfil status:errored")
        await user.sees("in step invoice at", ".runs .origin")
        await user.sees("browser_shop.py:", ".runs .origin")
        await user.open("run/fulfil/o-2")
        await user.sees("browser_shop.py:", ".position")
        await user.page.keyboard.press("r")
        await user.sees("fresh attempts", "dialog")
        await _confirm(user, "vat_id is back")
        await user.sees("Retry: fulfil/o-2", ".toast")
        await user.page.wait_for_selector(".run-facts select")  # there are two runs now
    assert await _last_action(stored_shop) == ("retry", "fulfil/o-2", "vat_id is back")


async def test_a_chain_and_a_graph_of_an_earlier_run_are_shown_without_actions(chromium: Browser, shop: Served) -> None:
    parcel, etl = await shop.app.get("parcels", "p-1"), await shop.app.get("etl", "e-1")
    await parcel.send_event("courier.came", None)
    for run in (parcel, etl):
        await run.result(timeout=60)
        await run.restart()
    async with visit(chromium, shop.url) as user:
        await user.open("run/parcels/p-1?run=0")
        await user.sees("2 of 2 steps done", ".chain-strip")
        assert await user.page.locator(".columns button").count() == 0
        await user.page.select_option(".run-facts select", "1")
        await user.sees("1 of 2 steps done", ".chain-strip")
        await user.sees("Resolve by hand…", ".columns")

        async with user.page.expect_request(lambda request: "/graph?runNumber=0" in request.url):
            await user.open("run/etl/e-1?run=0&node=total")
        await user.sees("Output", ".detail")
        assert await user.page.locator(".detail footer button").count() == 0


async def test_a_step_is_resolved_by_hand(chromium: Browser, stored_shop: Served) -> None:
    async with visit(chromium, stored_shop.url) as user:
        await user.open("run/parcels/p-1")
        await user.page.click("text=Resolve by hand…")
        assert await user.page.input_value("dialog label:has-text('Step') input") == "HAND_OVER"
        await user.page.fill("dialog label:has-text('Result') textarea", "not JSON")
        await user.page.click("dialog .primary")
        await user.sees("result: not valid JSON", "dialog")
        await user.page.fill("dialog label:has-text('Result') textarea", '"by hand"')
        await _confirm(user, "the courier called")
        await user.sees("complete", ".badge")
        await user.sees("by hand", ".output")
    assert await _last_action(stored_shop) == ("resolve", "parcels/p-1", "the courier called")


async def test_an_ask_in_the_mailbox_gets_a_reply_by_hand(chromium: Browser, stored_shop: Served) -> None:
    asking = await stored_shop.app.start("curious", "fulfil/o-1", id="q-1")
    async with visit(chromium, stored_shop.url) as user:
        await user.open("run/fulfil/o-1?tab=mailbox")
        await user.page.click("text=Reply…")
        await user.sees("The asking run or program gets this reply", "dialog")
        await user.page.fill("dialog label:has-text('Payload') textarea", "12")
        await _confirm(user, "counted by hand")
        await user.sees("ask, replied", "tbody")
    assert await asking.result(timeout=60) == 12
    assert await _last_action(stored_shop) == ("reply", "fulfil/o-1", "counted by hand")


async def test_the_runs_of_a_cause_are_retried_together(chromium: Browser, stored_shop: Served) -> None:
    for number in (3, 4):
        run = await stored_shop.app.start("fulfil", {"id": f"o-{number}", "total": -1}, id=f"o-{number}")
        with pytest.raises(RunFailedError):
            await run.result(timeout=60)
    async with visit(chromium, stored_shop.url) as user:
        await user.open()
        row = ".attention-row:has-text('vat_id')"
        await user.page.wait_for_function("() => /Retry 3/.test(document.querySelector('.overview')?.innerText ?? '')")
        await user.page.click(f"{row} >> text=Retry 3…")
        await user.sees("3 runs would continue from their history", "dialog")
        await _confirm(user, "vat_id is back")
        await user.sees("Retry: 3 runs", ".toast")
    retried = [record.target for record in (await stored_shop.app.audit()).items if record.action == "retry"]
    assert {"fulfil/o-2", "fulfil/o-3", "fulfil/o-4"} <= {*retried}


async def test_parked_events_of_an_outbox_are_delivered_again(chromium: Browser, stored_shop: Served) -> None:
    await stored_shop.app.start("letters", "l-1", id="l-1")
    async with visit(chromium, stored_shop.url) as user:
        await user.open("run/letters/l-1")
        await user.sees("1 parked", ".columns")
        await user.sees("the letter box is full", ".columns")
        await user.sees("Parked outbound events: letter.sent", ".why-row")
        await user.page.click(".why-row >> text=Redeliver…")
        await user.sees("beginning with attempt 1", "dialog")
        await _confirm(user, "it was emptied")
        await user.sees("delivered", ".outbox-row")
        await user.page.wait_for_selector(".why-row >> text=Redeliver…", state="detached")
    assert (await _last_action(stored_shop))[2] == "it was emptied"


async def test_an_event_to_a_selection_has_its_reason_in_the_audit(chromium: Browser, stored_shop: Served) -> None:
    async with visit(chromium, stored_shop.url) as user:
        await user.open("runs?q=workflow:fulfil status:waiting")
        await user.page.check("[aria-label='Select fulfil/o-1']")
        await user.page.click(".bulk >> text=Send event")
        await user.page.fill("[aria-label='Event type']", "approval")
        await user.page.fill("[aria-label='Payload as JSON']", '{"by": "ann"}')
        await user.page.fill("[aria-label=Reason]", "decided by phone")
        await user.page.click(".bulk .primary")
        await user.sees("Send event: 1 run", ".toast")
    result: Any = await (await stored_shop.app.get("fulfil", "o-1")).result(timeout=60)
    assert result["by"] == "ann"
    assert await _last_action(stored_shop) == ("send_event", "fulfil/o-1", "decided by phone")


async def test_two_fields_that_change_in_one_turn_both_keep_their_value(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=workflow:fulfil status:waiting")
        await user.page.check("[aria-label='Select fulfil/o-1']")
        await user.page.click(".bulk >> text=Send event")
        await user.page.wait_for_selector("[aria-label='Event type']")
        await user.page.evaluate(FILL_BOTH)
        await user.page.wait_for_selector(".bulk .primary:enabled")
        assert await user.page.input_value("[aria-label='Event type']") == "approval"
        assert await user.page.input_value("[aria-label=Reason]") == "by phone"


async def test_a_run_and_its_values_are_shown_and_its_streams_followed(chromium: Browser, stored_shop: Served) -> None:
    run = await stored_shop.app.start("chat", "Why?", id="c-1")
    async with visit(chromium, stored_shop.url) as user:
        await user.open("run/chat/c-1")
        await user.page.click(".w-row:has-text('chat/c-1')")
        await user.sees("Why?", ".detail")
        await user.page.click(".tab-list >> text=Streams")
        await user.sees("thinking", "table")
        assert "done" not in await user.text("table")
        await run.send_event("go", None)
        await user.sees("done", "table")
        await user.sees("2 items, complete", "main")
        await user.open("run/chat/c-1?sel=%23run")
        await user.sees("It depends.", ".detail")
    async with asyncio.timeout(60):
        assert await run.result() == "It depends."
