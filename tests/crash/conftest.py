"""A nursery for the tests of one process, and a place for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from .herd import Herd
from .scene import Scene

MakeScene = Callable[..., Awaitable[Scene]]


@pytest.fixture(scope="session")
def herd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Herd]:
    herd = Herd(tmp_path_factory.mktemp("herd"))
    yield herd
    herd.close()


@pytest.fixture
async def make_scene(tmp_path_factory: pytest.TempPathFactory, herd: Herd) -> AsyncIterator[MakeScene]:
    """Makes a prepared place: ``await make_scene(copies=16)``."""
    scenes: list[Scene] = []

    async def make(copies: int = 1, *, of: Scene | None = None) -> Scene:
        folder = tmp_path_factory.mktemp("scene")
        scene = Scene(folder / "scene", herd, copies) if of is None else of.copy(f"{folder.name}-copy")
        scenes.append(scene)
        if of is None:
            await scene.prepare()
        return scene

    yield make
    for scene in scenes:
        scene.close()


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether to take the time to visit every kill point."""
    return bool(request.config.getoption("--long"))
