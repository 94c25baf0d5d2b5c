"""``holdfast schedules`` against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .live import LiveServer


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("live"))
    live.start()
    yield live
    assert live.stop() == 0


def test_a_schedule_is_created_changed_and_deleted_on_the_command_line(live: LiveServer) -> None:
    def schedules(*words: str) -> str:
        done = live.run("schedules", *words)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    order = '{"id": "s", "total": 1}'
    zone = ("--timezone", "Europe/Berlin", "--overlap", "allow", "--catch-up", "1h")
    assert schedules("list") == "There are no schedules.\n"
    assert schedules("create", "n", "-w", "fulfil", "--cron", "0 3 * * *", *zone, "--params", order) == (
        "created schedule n\n"
    )
    assert "cron 0 3 * * * (Europe/Berlin)" in schedules("list")
    assert schedules("update", "n", "--every", "1h") == "updated schedule n\n"
    options = ("--jitter", "5 minutes", "--run-timeout", "1h", "--retry", '{"limit": 2}', "--memo", '{"by": "ann"}')
    assert schedules("update", "n", *options, "--search", "team=a", "--priority", "3") == "updated schedule n\n"
    assert "run timeout 1 h" in schedules("get", "n")
    assert schedules("update", "n", "--clear", "jitter", "--clear", "run-timeout", "--reason", "fast") == (
        "updated schedule n\n"
    )
    shown = schedules("get", "n", "--runs", "0")
    assert [text in shown for text in ("run timeout", '{"by": "ann"}', "priority 3")] == [False, True, True]
    assert live.run("schedules", "update", "n", "--reason", "none").returncode == 2
    assert live.run("schedules", "preview", "n", "--count", "0").returncode == 2
    assert live.run("schedules", "update", "n", "--clear", "cron", "--cron", "0 3 * * *").returncode == 2
    assert schedules("pause", "n", "--note", "moving") == "paused schedule n\n"
    assert "paused: moving" in schedules("get", "n")
    assert schedules("trigger", "n").startswith("started fulfil/n-")
    period = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T02:00:00Z")
    assert schedules("backfill", "n", *period, "--overlap", "allow") == "3 ticks of n run\n"
    assert schedules("resume", "n") == "resumed schedule n\n"
    assert len(schedules("preview", "n", "-n", "3").splitlines()) == 3
    assert schedules("delete", "n") == "deleted schedule n\n"
    missing = live.run("schedules", "get", "n")
    assert (missing.returncode, "SCHEDULE_NOT_FOUND" in missing.stderr) == (1, True)
