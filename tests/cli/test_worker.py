"""``holdfast worker``: real processes and real signals. The test itself is only a client.

Leases last 30 seconds here, so a test in which a run waits for the end of a lease times out.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.supervisor import restart_delay
from holdfast.core.collector import THRESHOLDS

from .shop import Shop, gone, until

LIMIT = 20


async def start_and_wait_for_step(shop: Shop, name: str) -> None:
    """Start a run and wait until its first step is in flight; the step ends when the test allows it."""
    async with shop.client() as app:
        await app.start("two_steps", name, id=name)
    await shop.wait_until_started("first", name)


# --- one process


async def test_a_worker_runs_what_a_client_starts(shop: Shop) -> None:
    worker = shop.worker_from_the_path()
    async with shop.client() as app:
        run = await app.start("greet", "ann")

        assert await run.result(timeout=LIMIT) == "hello ann"

    worker.signal(signal.SIGTERM)
    assert await worker.wait_for_end() == 0
    pid = worker.process.pid
    lines = [line.split(" ", 3)[3] for line in worker.output.splitlines()]
    assert lines == [
        f"worker {pid} started: queues default; database {shop.url}",
        f"worker {pid} draining: steps in flight have 30 s to end; a second signal ends it at once",
        f"worker {pid} stopped",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_steps_in_flight_end_and_releases_runs(shop: Shop, number: int) -> None:
    worker = shop.worker()
    await start_and_wait_for_step(shop, "ann")

    worker.signal(number)
    await worker.wait_for_output("draining")
    shop.allow("ann")

    assert await worker.wait_for_end() == 0
    assert shop.started_in("second") == []
    assert shop.owned_tasks() == 0
    shop.worker()
    async with shop.client() as app:
        run = await app.get("two_steps", "ann")
        assert await run.result(timeout=LIMIT) == worker.process.pid
    assert len(shop.started_in("first")) == 1


async def test_a_step_that_takes_longer_than_the_drain_is_interrupted(shop: Shop) -> None:
    worker = shop.worker("--drain", "0.2")
    await start_and_wait_for_step(shop, "ann")

    worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end(seconds=25) == 0  # less than the default drain
    assert shop.owned_tasks() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_second_signal_ends_the_worker_at_once(shop: Shop, number: int) -> None:
    worker = shop.worker("--drain", "10 min")
    await start_and_wait_for_step(shop, "ann")
    worker.signal(signal.SIGTERM)
    await worker.wait_for_output("draining")

    worker.signal(number)

    assert await worker.wait_for_end() == -number


async def test_the_second_signal_ends_a_worker_whose_event_loop_is_blocked(shop: Shop) -> None:
    worker = shop.worker()
    async with shop.client() as app:
        await app.start("blocks", "ann")
    await shop.wait_until_started("blocks")

    worker.signal(signal.SIGTERM)
    await until(lambda: not catches(worker.process.pid, signal.SIGTERM), "the first signal was not handled")
    worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end(seconds=25) == -signal.SIGTERM


def catches(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal."""
    [mask] = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


async def test_a_worker_claims_runs_of_its_queues_only(shop: Shop) -> None:
    worker = shop.worker("--queue", "mail", "--queue", "bulk")
    async with shop.client() as app:
        other = await app.start("greet", "other")
        for queue in ("mail", "bulk"):
            run = await app.start("greet", queue, queue=queue)
            assert await run.result(timeout=LIMIT) == f"hello {queue}"
        assert (await other.status()).status == "active"
        assert "queues mail, bulk;" in worker.output

        shop.worker("--queue", "default")
        assert await other.result(timeout=LIMIT) == "hello other"


async def test_concurrency_limits_the_runs_of_a_process(shop: Shop) -> None:
    async with shop.client() as app:
        runs = [await app.start("counts") for _ in range(8)]
        shop.worker("--concurrency", "1")

        assert [await run.result(timeout=LIMIT) for run in runs] == [1] * 8


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_the_module_may_be_in_any_directory(
    shop: Shop, tmp_path_factory: pytest.TempPathFactory, processes: str
) -> None:
    package = shop.folder / "jobs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text("import shop\n\nclass holder:\n    app = shop.app\n")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    target = "jobs.main:holder.app"
    worker = shop.worker("--app-dir", str(shop.folder), "--processes", processes, target=target, cwd=elsewhere)
    async with shop.client() as app:
        run = await app.start("greet", "ann")

        assert await run.result(timeout=LIMIT) == "hello ann"

    assert list(elsewhere.iterdir()) == []
    worker.signal(signal.SIGTERM)
    assert await worker.wait_for_end() == 0


async def test_the_log_level_can_be_set(shop: Shop) -> None:
    worker = shop.worker("--log-level", "warning")
    await start_and_wait_for_step(shop, "ann")
    shop.allow("ann")
    worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end() == 0
    assert worker.output == ""


async def test_logging_that_the_module_has_configured_is_kept(shop: Shop) -> None:
    (shop.folder / "own.py").write_text(
        "import logging\nfrom shop import app\nlogging.basicConfig(format='mine: %(message)s')\n"
    )
    worker = shop.worker(target="own:app")
    await worker.wait_for_output("started")
    worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end() == 0
    assert [line[:13] for line in worker.output.splitlines()] == ["mine: worker "] * 3


async def test_a_worker_rarely_collects_garbage(shop: Shop) -> None:
    """With a thousand runs in flight each collection would stop the process for tens of milliseconds."""
    (shop.folder / "collecting.py").write_text(
        "import gc\nfrom shop import app\n"
        "@app.workflow\nasync def gc_state(ctx) -> list:\n"
        "    return [gc.get_threshold()[0], gc.get_freeze_count() > 1000]\n"
    )
    shop.worker(target="collecting:app")
    async with shop.client() as app:
        app.remote("gc_state")
        run = await app.start("gc_state")
        assert await run.result(timeout=LIMIT) == [THRESHOLDS[0], True]


async def test_an_app_without_workflows_is_logged_as_a_warning(shop: Shop) -> None:
    (shop.folder / "empty.py").write_text("from holdfast import Holdfast\napp = Holdfast('sqlite://')\n")
    worker = shop.worker(target="empty:app")

    await worker.wait_for_output("WARNING the app has no workflows")


# --- several processes


async def test_processes_share_the_runs(shop: Shop) -> None:
    """Each of two runs waits until the other runs in another process."""
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    async with shop.client() as app:
        runs = [await app.start("meets", name) for name in ("ann", "bob")]
        pids = {await run.result(timeout=LIMIT) for run in runs}

    assert pids == set(worker.workers())
    assert len(pids) == 2


async def test_a_signal_drains_all_processes(shop: Shop) -> None:
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_wait_for_step(shop, name)

    worker.signal(signal.SIGTERM)
    await worker.wait_for_output("draining", times=2)
    for name in ("ann", "bob"):
        shop.allow(name)

    assert await worker.wait_for_end() == 0
    assert shop.owned_tasks() == 0
    assert shop.started_in("second") == []
    assert worker.output.count(" stopped\n") == 3
    assert all(gone(pid) for pid in worker.workers())


@pytest.mark.parametrize("supervisor_first", [True, False])
async def test_a_signal_to_every_process_still_drains(shop: Shop, supervisor_first: bool) -> None:
    """A service manager sends the signal to every process, in any order."""
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_wait_for_step(shop, name)
    pids = [worker.process.pid, *worker.workers()] if supervisor_first else [*worker.workers(), worker.process.pid]

    os.kill(pids[0], signal.SIGTERM)
    await worker.wait_for_output("draining")
    for pid in pids[1:]:
        os.kill(pid, signal.SIGTERM)
    await worker.wait_for_output("draining", times=2)
    for name in ("ann", "bob"):
        shop.allow(name)

    assert await worker.wait_for_end() == 0
    assert shop.query("SELECT count(*) FROM holdfast_fact WHERE key = 'first' AND state = 0") == 2
    assert shop.owned_tasks() == 0


async def test_a_closed_terminal_drains_all_processes(shop: Shop) -> None:
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_wait_for_step(shop, name)

    os.killpg(worker.process.pid, signal.SIGHUP)
    await worker.wait_for_output("draining", times=2)
    for name in ("ann", "bob"):
        shop.allow(name)

    await until(lambda: all(gone(pid) for pid in worker.workers()), lambda: worker.output)
    assert shop.owned_tasks() == 0


async def test_the_second_signal_ends_all_processes_at_once(shop: Shop) -> None:
    worker = shop.worker("--processes", "2", "--drain", "10 min", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_wait_for_step(shop, name)
    worker.signal(signal.SIGTERM)
    await worker.wait_for_output("draining", times=2)

    worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end() == 128 + signal.SIGTERM
    assert all(gone(pid) for pid in worker.workers())


async def test_a_killed_process_is_replaced(shop: Shop) -> None:
    worker = shop.worker("--processes", "2")
    await worker.wait_for_output("started: queues", times=2)
    first, second = worker.workers()

    os.kill(first, signal.SIGKILL)
    await worker.wait_for_output("started: queues", times=3)

    third = worker.workers()[-1]
    assert f"worker {first} ended (killed by SIGKILL), restarting it in 0 s" in worker.output
    assert f"worker {first} restarted as {third}" in worker.output
    worker.signal(signal.SIGTERM)
    assert await worker.wait_for_end() == 0
    assert all(gone(pid) for pid in (second, third))


async def test_a_process_that_ends_repeatedly_is_restarted_after_growing_delays(shop: Shop) -> None:
    worker = shop.worker("--processes", "2")
    await worker.wait_for_output("started: queues", times=2)

    (shop.folder / "broken").touch()
    os.kill(worker.workers()[0], signal.SIGKILL)
    await worker.wait_for_output("ended", times=3)
    (shop.folder / "broken").unlink()
    await worker.wait_for_output("started: queues", times=3)

    assert re.findall(r"ended \((.+)\), restarting it in (.+) s", worker.output) == [
        ("killed by SIGKILL", "0"),
        ("exit code 3", "0.5"),
        ("exit code 3", "1"),
    ]
    worker.signal(signal.SIGTERM)
    assert await worker.wait_for_end() == 0


async def test_a_signal_ends_the_wait_for_a_restart(shop: Shop) -> None:
    worker = shop.worker("--processes", "2")
    await worker.wait_for_output("started: queues", times=2)
    (shop.folder / "broken").touch()
    os.kill(worker.workers()[0], signal.SIGKILL)
    await worker.wait_for_output("restarting it in 1 s")

    worker.signal(signal.SIGINT)

    assert await worker.wait_for_end() == 0


def test_restart_delays_grow_up_to_a_limit() -> None:
    delays = [restart_delay(exits) for exits in range(1, 11)]

    assert delays == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert restart_delay(10_000) == 30


async def test_a_killed_supervisor_leaves_no_worker_running(shop: Shop) -> None:
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_wait_for_step(shop, name)

    worker.signal(signal.SIGKILL)
    await worker.wait_for_output("draining", times=2)
    for name in ("ann", "bob"):
        shop.allow(name)

    await until(lambda: all(gone(pid) for pid in worker.workers()), lambda: worker.output)
    assert shop.owned_tasks() == 0


def test_a_hanging_worker_exits_after_its_supervisor_has_ended() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = (
            "from holdfast.cli.supervisor_link import SupervisorLink; "
            f"SupervisorLink({theirs.fileno()}).watch(lambda: None, 0.1)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", f"{watch}; import time; time.sleep(60)"], pass_fds=[theirs.fileno()]
        )
    try:
        assert process.wait(LIMIT) == 1
    finally:
        process.kill()
        process.wait()


async def test_no_further_process_starts_if_the_first_fails(shop: Shop) -> None:
    (shop.folder / "shop.db").write_text("dear reader, this is not a database")
    worker = shop.worker("--processes", "3")

    assert await worker.wait_for_end() == 1
    assert re.fullmatch(r".* started: 3 workers\nholdfast: .*is not a database.*\n", worker.output), worker.output


# --- apps that cannot be run


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nope:app", "there is no module 'nope' in "),
        ("shop.nope:app", "there is no module 'shop.nope' in "),
        ("shop:nope", "the module 'shop' has no 'nope'"),
        ("shop:not_an_app", "shop:not_an_app is not a Holdfast app but of type 'int'"),
    ],
)
def test_a_target_that_is_not_an_app_is_refused_in_one_line(
    shop: Shop, target: str, reason: str, processes: str
) -> None:
    done = shop.holdfast("worker", target, "--log-level", "warning", "--processes", processes)

    assert done.returncode == 2
    assert re.fullmatch(r"holdfast: .+\n", done.stderr), done.stderr
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["shop"], "'shop' does not name an app"),
        (["shop:"], "'shop:' does not name an app"),
        ([":app"], "':app' does not name an app"),
        (["./shop.py:app"], "'./shop.py:app' does not name an app"),
        (["shop:app", "--app-dir", "nowhere"], "--app-dir nowhere: there is no such directory"),
        (["shop:app", "--drain", "soon"], "--drain: 'soon' cannot be read as a duration"),
        (["shop:app", "--drain", "-1"], "--drain: -1.0 is negative"),
        (["shop:app", "--queue", ""], "--queue: the name of a queue must not be empty"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(shop: Shop, arguments: list[str], reason: str) -> None:
    for processes in ("1", "2"):
        done = shop.holdfast("worker", *arguments, "--processes", processes, "--log-level", "warning")

        assert done.returncode == 2
        assert re.fullmatch(r"holdfast: .+\n", done.stderr), done.stderr
        assert reason in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["shop:app", "--processes", "0"],
        ["shop:app", "--concurrency", "0"],
        ["shop:app", "--concurrency", "many"],
        ["shop:app", "--log-level", "loud"],
        ["shop:app", "--nope"],
    ],
)
def test_wrong_usage_exits_with_2(shop: Shop, arguments: list[str]) -> None:
    done = shop.holdfast("worker", *arguments)

    assert done.returncode == 2
    assert done.stderr.count("Error: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("def broken():\n    raise ValueError('boom')\n\nbroken()\n", "ValueError: boom"),
        ("import no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def broken(:\n", "SyntaxError: invalid syntax"),
    ],
)
def test_a_module_that_cannot_be_imported_shows_its_own_traceback(shop: Shop, code: str, last: str) -> None:
    (shop.folder / "bad.py").write_text(code)

    done = shop.holdfast("worker", "bad:app")

    assert done.returncode == 2
    *trace, error, line = done.stderr.splitlines()
    assert error == last
    assert line == f"holdfast: the module 'bad' cannot be imported: {last.partition(':')[0]} (see above)"
    assert str(shop.folder / "bad.py") in "\n".join(trace)
    assert "importlib" not in done.stderr
    assert "holdfast/cli" not in done.stderr


async def test_a_database_that_cannot_be_opened_is_reported_in_one_line(shop: Shop) -> None:
    (shop.folder / "shop.db").mkdir()

    done = await asyncio.to_thread(shop.holdfast, "worker", "shop:app")

    assert done.returncode == 1
    assert re.fullmatch(r"holdfast: .+it is a directory.+\n", done.stderr), done.stderr
