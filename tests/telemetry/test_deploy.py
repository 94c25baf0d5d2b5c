"""The dashboard and the alert rules name only metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from holdfast.telemetry.metrics import NAMES

DEPLOY = Path(__file__).parents[2] / "deploy"
_NAME = re.compile(r"\bholdfast_[a-z_]+")


def expressions(name: str) -> list[str]:
    if name.endswith(".json"):
        dashboard = json.loads((DEPLOY / name).read_text())
        return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    groups = yaml.safe_load((DEPLOY / name).read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "prometheus-alerts.yml"])
def test_every_metric_that_is_named_exists(name: str) -> None:
    used = {word for text in expressions(name) for word in _NAME.findall(text)}

    assert used
    assert {re.sub("_(bucket|sum|count)$", "", word) for word in used} <= set(NAMES)


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(expressions("grafana-dashboard.json"))

    assert [name for name in NAMES if name not in shown] == []


def test_the_page_describes_every_metric() -> None:
    page = (DEPLOY.parent / "docs" / "observability.md").read_text()

    assert [name for name in NAMES if f"| `{name}` |" not in page] == []
