"""The list of the instances of all workflows: its filters, its order and its items."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from http_api import Api

from holdfast.testing import Harness

EVERY_STORE = True


async def _ids(virtual: Api, **query: Any) -> list[str]:
    response = await virtual.send("GET", "/_instances", params=query)
    assert response.status_code == 200, response.text
    return [f"{item['workflowName']}/{item['id']}" for item in response.json()["instances"]]


async def test_the_list_covers_all_workflows_and_shows_why(virtual: Api, h: Harness) -> None:
    await h.start("waiter", id="w")
    await h.start("failing", id="b")
    await h.run_until_idle()

    response = await virtual.send("GET", "/_instances")

    newest, oldest = response.json()["instances"]
    assert (newest["workflowName"], newest["id"], newest["details"]["status"]) == ("failing", "b", "errored")
    assert (oldest["workflowName"], oldest["id"]) == ("waiter", "w")
    assert "waiting for an event" in oldest["why"]
    assert oldest["meta"]["runNumber"] == 0
    assert oldest["meta"]["why"] == oldest["why"]


async def test_filters_and_order_select_instances(virtual: Api, h: Harness) -> None:
    await h.start("waiter", id="w")
    await h.run_until_idle()
    await h.advance("1 minute")
    later = h.now()
    failed = await h.start("failing", id="b", queue="default")
    await h.run_until_idle()
    error = (await failed.status()).error
    assert error is not None

    assert await _ids(virtual) == ["failing/b", "waiter/w"]
    assert await _ids(virtual, order="asc") == ["waiter/w", "failing/b"]
    assert await _ids(virtual, workflow="waiter") == ["waiter/w"]
    assert await _ids(virtual, error=error.name) == ["failing/b"]
    assert await _ids(virtual, createdBefore=later.isoformat()) == ["waiter/w"]
    assert await _ids(virtual, endedAfter=later.isoformat()) == ["failing/b"]
    assert await _ids(virtual, endedBefore=later.isoformat()) == []
    assert await _ids(virtual, idPrefix="w", status="waiting", queue="default") == ["waiter/w"]
    page = (await virtual.send("GET", "/_instances", params={"pageSize": 1, "order": "asc"})).json()
    assert await _ids(virtual, order="asc", cursor=page["cursor"]) == ["failing/b"]


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "query",
    [{"endedAfter": "2026-01-01T00:00:00"}, {"createdBefore": "5"}, {"error": ""}, {"order": "up"}, {"queue": ""}],
    ids=str,
)
async def test_an_invalid_filter_is_refused(virtual: Api, query: dict[str, str]) -> None:
    response = await virtual.send("GET", "/_instances", params=query)

    assert (response.status_code, response.json()["code"]) == (400, "VALIDATION_ERROR")


@pytest.mark.above_the_store
async def test_an_unknown_workflow_is_not_found(virtual: Api) -> None:
    response = await virtual.send("GET", "/_instances", params={"workflow": "ghost"})

    assert (response.status_code, response.json()["code"]) == (404, "WORKFLOW_NOT_FOUND")


async def test_app_list_takes_the_fields_of_a_filter(h: Harness) -> None:
    await h.start("waiter", id="w")
    await h.run_until_idle()
    now = datetime.now(UTC)

    found = await h.app.list(created_before=h.now() + timedelta(seconds=1), order="asc")

    assert [item.id for item in found.items] == ["w"]
    assert (await h.app.list(ended_before=now + timedelta(days=9999))).items == []
