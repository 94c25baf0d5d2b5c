"""``holdfast doctor``: checks a database and prints what is wrong, with the command that fixes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.app import Holdfast
from holdfast.core.durations import to_ms
from holdfast.ports import Runtime
from holdfast.runner.config import WorkerConfig
from holdfast.store.protocol.diagnosis import Finding, Severity, examine_counts, examine_waiting
from holdfast.store_url import check_url, make_doctor

_ORDER = [Severity.ERROR, Severity.WARNING, Severity.OK]


def examine(url: str, schema: str | None, app: Holdfast | None) -> list[Finding]:
    """All findings, errors first."""
    check_url(url, schema)
    return sorted(asyncio.run(_examine(url, schema, app)), key=lambda finding: _ORDER.index(finding.severity))


async def _examine(url: str, schema: str | None, app: Holdfast | None) -> list[Finding]:
    doctor = make_doctor(url, schema, Runtime())
    try:
        refusal = await doctor.open()
        if refusal is not None:
            return [refusal]
        lease_ms = to_ms((app.worker_config if app else WorkerConfig()).lease)
        settings = await doctor.settings(lease_ms)
        if any(one.check == "rights" and one.severity is Severity.ERROR for one in settings):
            return settings
        counts, workers = await doctor.counts(), await doctor.workers()
        queues = frozenset(queue for names, _ in workers for queue in names)
        versions = frozenset(version for _, version in workers if version is not None)
        retention = None if app is None else app.registry.retention is not None
        return [
            *settings,
            *examine_counts(counts, retention=retention),
            *examine_waiting(counts.waiting, queues, versions, None if app is None else app.registry.runnable()),
            Finding(Severity.OK, "workers", f"{len(workers)} alive"),
        ]
    finally:
        await doctor.close()


def report(findings: list[Finding], say: Callable[[str], None]) -> bool:
    """Print the findings; returns False if one of them is an error."""
    for finding in findings:
        say(f"{finding.severity.value:<8} {finding.check}: {finding.text}")
        if finding.fix is not None:
            say(f"{'':<8} fix: {finding.fix}")
    counts = {severity: sum(one.severity is severity for one in findings) for severity in Severity}
    say(f"{counts[Severity.ERROR]} errors, {counts[Severity.WARNING]} warnings")
    return not counts[Severity.ERROR]


def load(target: str | None, directory: Path) -> Holdfast | None:
    from holdfast.cli.loading import load_app

    return None if target is None else load_app(target, directory)
