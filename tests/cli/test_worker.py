"""``holdfast worker``: real processes and real signals. The test itself is only a client.

Leases last 30 seconds here: whoever had to wait for one to run out would be seen.
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

from holdfast.cli.memory import THRESHOLDS
from holdfast.cli.supervisor import pause_before_restart

from .shop import Shop, gone, until

LIMIT = 20


async def start_and_begin(shop: Shop, name: str) -> None:
    """A run whose first step is in flight until the test allows it to end."""
    async with shop.client() as app:
        await app.start("two_steps", name, id=name)
    await shop.until_begun("first", name)


# --- one process


async def test_it_runs_what_a_client_starts(shop: Shop) -> None:
    worker = shop.worker_from_the_path()
    async with shop.client() as app:
        run = await app.start("greet", "ann")

        assert await run.result(timeout=LIMIT) == "hello ann"

    worker.signal(signal.SIGTERM)
    assert await worker.ends() == 0
    pid = worker.process.pid
    lines = [line.split(" ", 3)[3] for line in worker.said.splitlines()]
    assert lines == [
        f"worker {pid} started: queues default; database {shop.url}",
        f"worker {pid} draining: steps in flight have 30 s to end; a second signal ends it at once",
        f"worker {pid} stopped",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_steps_in_flight_end_and_gives_runs_back(shop: Shop, number: int) -> None:
    worker = shop.worker()
    await start_and_begin(shop, "ann")

    worker.signal(number)
    await worker.says("draining")
    shop.allow("ann")

    assert await worker.ends() == 0
    assert shop.began("second") == []
    assert shop.held() == 0
    shop.worker()
    async with shop.client() as app:
        run = await app.get("two_steps", "ann")
        assert await run.result(timeout=LIMIT) == worker.process.pid
    assert len(shop.began("first")) == 1


async def test_a_step_that_takes_longer_than_the_drain_is_cut_off(shop: Shop) -> None:
    worker = shop.worker("--drain", "0.2")
    await start_and_begin(shop, "ann")

    worker.signal(signal.SIGTERM)

    assert await worker.ends(seconds=5) == 0
    assert shop.held() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_second_signal_ends_it_at_once(shop: Shop, number: int) -> None:
    worker = shop.worker("--drain", "10 min")
    await start_and_begin(shop, "ann")
    worker.signal(signal.SIGTERM)
    await worker.says("draining")

    worker.signal(number)

    assert await worker.ends(seconds=5) == -number


async def test_the_second_signal_ends_it_also_when_a_step_blocks_the_event_loop(shop: Shop) -> None:
    worker = shop.worker()
    async with shop.client() as app:
        await app.start("blocks", "ann")
    await shop.until_begun("blocks")

    worker.signal(signal.SIGTERM)
    await until(lambda: not catches(worker.process.pid, signal.SIGTERM), "the first signal was not taken")
    worker.signal(signal.SIGTERM)

    assert await worker.ends(seconds=5) == -signal.SIGTERM


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    [mask] = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


async def test_it_takes_runs_of_its_queues_only(shop: Shop) -> None:
    worker = shop.worker("--queue", "mail", "--queue", "bulk")
    async with shop.client() as app:
        other = await app.start("greet", "other")
        for queue in ("mail", "bulk"):
            run = await app.start("greet", queue, queue=queue)
            assert await run.result(timeout=LIMIT) == f"hello {queue}"
        assert (await other.status()).status == "active"
        assert "queues mail, bulk;" in worker.said

        shop.worker("--queue", "default")
        assert await other.result(timeout=LIMIT) == "hello other"


async def test_it_holds_as_many_runs_as_told(shop: Shop) -> None:
    async with shop.client() as app:
        runs = [await app.start("counts") for _ in range(8)]
        shop.worker("--concurrency", "1")

        assert [await run.result(timeout=LIMIT) for run in runs] == [1] * 8


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_the_module_may_be_anywhere(shop: Shop, tmp_path_factory: pytest.TempPathFactory, processes: str) -> None:
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
    assert await worker.ends() == 0


async def test_the_log_level_can_be_set(shop: Shop) -> None:
    worker = shop.worker("--log-level", "warning")
    await start_and_begin(shop, "ann")
    shop.allow("ann")
    worker.signal(signal.SIGTERM)

    assert await worker.ends() == 0
    assert worker.said == ""


async def test_logging_that_the_module_set_up_is_left_alone(shop: Shop) -> None:
    (shop.folder / "own.py").write_text(
        "import logging\nfrom shop import app\nlogging.basicConfig(format='mine: %(message)s')\n"
    )
    worker = shop.worker(target="own:app")
    await worker.says("started")
    worker.signal(signal.SIGTERM)

    assert await worker.ends() == 0
    assert [line[:13] for line in worker.said.splitlines()] == ["mine: worker "] * 3


async def test_it_seldom_looks_for_garbage(shop: Shop) -> None:
    """With a thousand runs in flight each look would stop the process for tens of milliseconds."""
    (shop.folder / "looking.py").write_text(
        "import gc\nfrom shop import app\n"
        "@app.workflow\nasync def look(ctx) -> list:\n"
        "    return [gc.get_threshold()[0], gc.get_freeze_count() > 1000]\n"
    )
    shop.worker(target="looking:app")
    async with shop.client() as app:
        app.remote("look")
        run = await app.start("look")
        assert await run.result(timeout=LIMIT) == [THRESHOLDS[0], True]


async def test_an_app_without_workflows_is_warned_of(shop: Shop) -> None:
    (shop.folder / "empty.py").write_text("from holdfast import Holdfast\napp = Holdfast('sqlite://')\n")
    worker = shop.worker(target="empty:app")

    await worker.says("WARNING the app has no workflows")


# --- several processes


async def test_processes_share_the_work(shop: Shop) -> None:
    """Each of two runs waits for the other one to be in another process."""
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    async with shop.client() as app:
        runs = [await app.start("meets", name) for name in ("ann", "bob")]
        pids = {await run.result(timeout=LIMIT) for run in runs}

    assert pids == set(worker.workers())
    assert len(pids) == 2


async def test_a_signal_drains_all_of_them(shop: Shop) -> None:
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_begin(shop, name)

    worker.signal(signal.SIGTERM)
    await worker.says("draining", times=2)
    for name in ("ann", "bob"):
        shop.allow(name)

    assert await worker.ends() == 0
    assert shop.held() == 0
    assert shop.began("second") == []
    assert worker.said.count(" stopped\n") == 3
    assert all(gone(pid) for pid in worker.workers())


@pytest.mark.parametrize("supervisor_first", [True, False])
async def test_a_signal_to_every_process_still_drains(shop: Shop, supervisor_first: bool) -> None:
    """As service managers send it, in any order."""
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_begin(shop, name)
    everyone = [worker.process.pid, *worker.workers()] if supervisor_first else [*worker.workers(), worker.process.pid]

    os.kill(everyone[0], signal.SIGTERM)
    await worker.says("draining")
    for pid in everyone[1:]:
        os.kill(pid, signal.SIGTERM)
    await worker.says("draining", times=2)
    for name in ("ann", "bob"):
        shop.allow(name)

    assert await worker.ends() == 0
    assert shop.query("SELECT count(*) FROM holdfast_fact WHERE key = 'first' AND state = 0") == 2
    assert shop.held() == 0


async def test_a_terminal_that_is_closed_drains_them(shop: Shop) -> None:
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_begin(shop, name)

    os.killpg(worker.process.pid, signal.SIGHUP)
    await worker.says("draining", times=2)
    for name in ("ann", "bob"):
        shop.allow(name)

    await until(lambda: all(gone(pid) for pid in worker.workers()), lambda: worker.said)
    assert shop.held() == 0


async def test_the_second_signal_ends_all_of_them_at_once(shop: Shop) -> None:
    worker = shop.worker("--processes", "2", "--drain", "10 min", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_begin(shop, name)
    worker.signal(signal.SIGTERM)
    await worker.says("draining", times=2)

    worker.signal(signal.SIGTERM)

    assert await worker.ends(seconds=5) == 128 + signal.SIGTERM
    assert all(gone(pid) for pid in worker.workers())


async def test_a_killed_process_is_replaced(shop: Shop) -> None:
    worker = shop.worker("--processes", "2")
    await worker.says("started: queues", times=2)
    first, second = worker.workers()

    os.kill(first, signal.SIGKILL)
    await worker.says("started: queues", times=3)

    third = worker.workers()[-1]
    assert f"worker {first} ended (killed by SIGKILL), restarting it in 0 s" in worker.said
    assert f"worker {first} restarted as {third}" in worker.said
    worker.signal(signal.SIGTERM)
    assert await worker.ends() == 0
    assert all(gone(pid) for pid in (second, third))


async def test_one_that_dies_again_and_again_is_restarted_after_growing_pauses(shop: Shop) -> None:
    worker = shop.worker("--processes", "2")
    await worker.says("started: queues", times=2)

    (shop.folder / "broken").touch()
    os.kill(worker.workers()[0], signal.SIGKILL)
    await worker.says("ended", times=3)
    (shop.folder / "broken").unlink()
    await worker.says("started: queues", times=3)

    assert re.findall(r"ended \((.+)\), restarting it in (.+) s", worker.said) == [
        ("killed by SIGKILL", "0"),
        ("exit code 3", "0.5"),
        ("exit code 3", "1"),
    ]
    worker.signal(signal.SIGTERM)
    assert await worker.ends() == 0


async def test_a_signal_ends_the_wait_for_a_restart(shop: Shop) -> None:
    worker = shop.worker("--processes", "2")
    await worker.says("started: queues", times=2)
    (shop.folder / "broken").touch()
    os.kill(worker.workers()[0], signal.SIGKILL)
    await worker.says("restarting it in 1 s")

    worker.signal(signal.SIGINT)

    assert await worker.ends(seconds=5) == 0


def test_pauses_grow_up_to_a_bound() -> None:
    pauses = [pause_before_restart(deaths) for deaths in range(1, 11)]

    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert pause_before_restart(10_000) == 30


async def test_a_killed_supervisor_leaves_nobody_behind(shop: Shop) -> None:
    worker = shop.worker("--processes", "2", "--concurrency", "1")
    for name in ("ann", "bob"):
        await start_and_begin(shop, name)

    worker.signal(signal.SIGKILL)
    await worker.says("draining", times=2)
    for name in ("ann", "bob"):
        shop.allow(name)

    await until(lambda: all(gone(pid) for pid in worker.workers()), lambda: worker.said)
    assert shop.held() == 0


def test_a_worker_that_hangs_ends_too_when_its_supervisor_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = f"from holdfast.cli.lifeline import Lifeline; Lifeline({theirs.fileno()}).watch(lambda: None, 0.1)"
        process = subprocess.Popen(
            [sys.executable, "-c", f"{watch}; import time; time.sleep(60)"], pass_fds=[theirs.fileno()]
        )
    try:
        assert process.wait(LIMIT) == 1
    finally:
        process.kill()
        process.wait()


async def test_the_processes_end_with_the_first_one_if_that_cannot_start(shop: Shop) -> None:
    (shop.folder / "shop.db").write_text("dear reader, this is not a database")
    worker = shop.worker("--processes", "3")

    assert await worker.ends() == 1
    assert re.fullmatch(r".* started: 3 workers\nholdfast: .*is not a database.*\n", worker.said), worker.said


# --- what cannot be run


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
def test_what_is_no_app_is_refused_in_one_line(shop: Shop, target: str, reason: str, processes: str) -> None:
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
        (["shop:app", "--queue", ""], "--queue: a queue has a name"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(shop: Shop, arguments: list[str], reason: str) -> None:
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
def test_wrong_usage_ends_with_2(shop: Shop, arguments: list[str]) -> None:
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
def test_a_module_that_breaks_shows_its_own_traceback(shop: Shop, code: str, last: str) -> None:
    (shop.folder / "bad.py").write_text(code)

    done = shop.holdfast("worker", "bad:app")

    assert done.returncode == 2
    *trace, error, line = done.stderr.splitlines()
    assert error == last
    assert line == f"holdfast: the module 'bad' cannot be imported: {last.partition(':')[0]} (see above)"
    assert str(shop.folder / "bad.py") in "\n".join(trace)
    assert "importlib" not in done.stderr
    assert "holdfast/cli" not in done.stderr


async def test_a_database_that_cannot_be_opened_is_one_line(shop: Shop) -> None:
    (shop.folder / "shop.db").mkdir()

    done = await asyncio.to_thread(shop.holdfast, "worker", "shop:app")

    assert done.returncode == 1
    assert re.fullmatch(r"holdfast: .+it is a directory.+\n", done.stderr), done.stderr
