"""Fixtures: one fork server for the tests of a process, and a workspace for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from postgres_harness import CleanSchemas

from .fork_server import ForkServer
from .workspace import Workspace

MakeWorkspace = Callable[..., Awaitable[Workspace]]


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    fork_server = ForkServer(tmp_path_factory.mktemp("fork-server"))
    yield fork_server
    fork_server.close()


@pytest.fixture
async def make_workspace(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> AsyncIterator[MakeWorkspace]:
    """Creates prepared workspaces: ``await make_workspace(copies=16)``."""
    workspaces: list[Workspace] = []

    async def make(copies: int = 1, *, of: Workspace | None = None) -> Workspace:
        folder = tmp_path_factory.mktemp("workspace")
        workspace = (
            Workspace(folder / "workspace", fork_server, copies) if of is None else of.copy(f"{folder.name}-copy")
        )
        workspaces.append(workspace)
        if of is None:
            await workspace.prepare()
        return workspace

    yield make
    for workspace in workspaces:
        workspace.close()


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """True if the test visits every kill point (``--long``)."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str | None]]:
    """The URL and the schema of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'work.db'}", None
        return
    with CleanSchemas.one() as place:
        yield place
