"""The probes ``/healthz`` and ``/readyz`` of servers and workers, and the manifests that use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import health as module
from holdfast.cli.main import cli
from holdfast.cli.metrics_server import metrics_server
from holdfast.cli.server import ServeOptions, _Application
from holdfast.telemetry.metrics import NAMES

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
DOCUMENTS = [document for file in sorted(MANIFESTS.glob("*.yaml")) for document in yaml.safe_load_all(file.read_text())]
REQUIRED = {
    "ConfigMap": ["data"],
    "Job": ["spec.template.spec.restartPolicy", "spec.template.spec.containers"],
    "Deployment": ["spec.replicas", "spec.selector.matchLabels", "spec.template.spec.terminationGracePeriodSeconds"],
    "PodDisruptionBudget": ["spec.minAvailable", "spec.selector.matchLabels"],
    "Service": ["spec.selector", "spec.ports"],
    "HorizontalPodAutoscaler": ["spec.scaleTargetRef.name", "spec.minReplicas", "spec.maxReplicas", "spec.metrics"],
}
"""Fields that a manifest of each kind must have."""


async def _unreachable() -> Any:
    raise OSError("no route")


async def test_a_worker_answers_probes_on_its_metrics_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/app.db")
    async with app.connect(), metrics_server(app, "127.0.0.1", 0, 1) as port, httpx.AsyncClient() as http:
        base = f"http://127.0.0.1:{port}"
        before = [(await http.get(base + path)).status_code for path in module.PATHS]
        monkeypatch.setattr(app, "workers", _unreachable)
        after = [(await http.get(base + path)).status_code for path in module.PATHS]

        assert before == [200, 200]
        assert after == [200, 503]
        assert (await http.get(f"{base}/")).status_code == 404
        assert (await http.post(f"{base}/healthz")).status_code == 405


@pytest.mark.parametrize("dashboard", [False, True])
async def test_a_server_answers_probes_without_authorization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dashboard: bool
) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/app.db")
    async with app.connect():
        served = _Application(
            app, ServeOptions("shop:app", Path(), "0.0.0.0", 8787, dashboard=dashboard, insecure=True)
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://10.1.2.3:8787") as http:
            before = [(await http.get(path)).status_code for path in module.PATHS]
            monkeypatch.setattr(app, "workers", _unreachable)

            assert before == [200, 200]
            assert [(await http.get(path)).status_code for path in module.PATHS] == [200, 503]
        served.end_streams()


def _containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for document in DOCUMENTS:
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", []):
            yield pod, container


def test_manifests_have_the_fields_of_their_kind() -> None:
    assert {document["kind"] for document in DOCUMENTS} == set(REQUIRED)
    for document in DOCUMENTS:
        assert document["apiVersion"]
        assert document["metadata"]["name"].startswith("shop")
        for path in REQUIRED[document["kind"]]:
            value = document
            for name in path.split("."):
                value = value[name]


def test_manifests_fit_the_schemas_of_kubernetes() -> None:
    for document in DOCUMENTS:
        kubernetes_validate.validate(document, "1.33", strict=True)


def test_manifests_call_commands_and_options_that_exist() -> None:
    for _, container in _containers():
        program, command, *arguments = container["command"]
        shown = CliRunner().invoke(cli, [command, "--help"])

        assert (program, shown.exit_code) == ("holdfast", 0)
        for option in (one for one in arguments if one.startswith("--")):
            assert option in shown.output, option


def test_probes_and_times_of_the_manifests_fit_the_commands() -> None:
    for pod, container in _containers():
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in (container[name] for name in container if name.endswith("Probe")):
            assert probe["httpGet"]["path"] in module.PATHS
            assert probe["httpGet"]["port"] in ports
            assert probe["timeoutSeconds"] > module._SECONDS
        if "livenessProbe" in container:
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        if "--drain" in container["command"]:
            drain = int(container["command"][container["command"].index("--drain") + 1])
            assert pod["terminationGracePeriodSeconds"] > drain


def test_the_autoscaler_uses_metrics_that_exist() -> None:
    [scaler] = [document for document in DOCUMENTS if document["kind"] == "HorizontalPodAutoscaler"]
    names = {metric["external"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}

    assert names == {"holdfast_queue_due", "holdfast_queue_oldest_due_seconds"}
    assert names <= set(NAMES)
    workers = {document["metadata"]["name"] for document in DOCUMENTS if document["kind"] == "Deployment"}
    assert scaler["spec"]["scaleTargetRef"]["name"] in workers
