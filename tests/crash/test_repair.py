"""SIGKILL in the middle of retries, forks, a prune and a stored bulk action: repeated, each is done exactly once."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path

import apsw
import pytest

from holdfast import Holdfast

from .fork_server import ForkServer
from .killer import WHEN
from .repair_program import IDS, act, make_repaired_app
from .workspace import until

POINTS = {"before": (1, 3), "during": (1, 2), "after": (1, 3)}
_TABLES = ("run", "fact", "event", "log", "task")


@pytest.fixture(scope="module")
async def errored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database in which all runs are errored."""
    folder = tmp_path_factory.mktemp("errored")
    (folder / "broken").touch()
    await _work(make_repaired_app(str(folder / "work.db")), start=True)
    (folder / "broken").unlink()
    return folder


@pytest.mark.promise("durability", "committed-results-never-change")
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("action", ["retry", "fork", "prune", "bulk"])
async def test_an_action_that_was_killed_is_repeated_and_done_once(
    errored: Path, tmp_path: Path, fork_server: ForkServer, action: str, when: str
) -> None:
    for n in POINTS[when]:
        folder = tmp_path / str(n)
        shutil.copytree(errored, folder)
        database = str(folder / "work.db")
        killed = fork_server.fork("repair_program:repair", database=database, action=action, kill_at=f"{n}:{when}")
        await until(lambda killed=killed: not killed.alive, "the process does not end")
        assert killed.code == -signal.SIGKILL, killed.output()

        app = make_repaired_app(database)
        await act(app, action)
        await _work(app)

        _check(folder, action)


async def _work(app: Holdfast, *, start: bool = False) -> None:
    async with app.connect():
        if start:
            for name in IDS:
                await app.start("flow", id=name)
        while await app.tick():
            pass


def _check(folder: Path, action: str) -> None:
    connection = apsw.Connection(str(folder / "work.db"))
    runs = connection.execute("SELECT instance_id, number, status FROM holdfast_run ORDER BY 1, 2").fetchall()
    calls = Counter((folder / "calls").read_text().splitlines())
    match action:
        case "prune":
            counts = [connection.execute(f"SELECT count(*) FROM holdfast_{table}").get for table in _TABLES]
            assert counts == [0] * len(_TABLES)
        case "fork":
            expected = [[(name, 0, "errored"), (f"{name}-fork", 0, "complete")] for name in IDS]
            assert runs == [run for both in expected for run in both]
            assert all(calls[f"first {name}"] == 1 and calls[f"second {name}-fork"] == 1 for name in IDS)
        case _:
            expected = [[(name, 0, "errored"), (name, 1, "complete")] for name in IDS]
            assert runs == [run for both in expected for run in both]
            assert all(calls[f"first {name}"] == 1 and calls[f"second {name}"] == 2 for name in IDS)
    connection.close()
