"""Exported runs as tests: each file in the folders of ``holdfast_runs`` is replayed on the code of the app."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.testing.exported_runs import replay_file
from holdfast.testing.plugin import configured_app


class ExportedRuns(pytest.File):
    """A file that ``run.export`` wrote."""

    def collect(self) -> Iterator[ExportedRun]:
        yield ExportedRun.from_parent(self, name="replay")


class ExportedRun(pytest.Item):
    """The test that the run in the file replays on the present code."""

    def runtest(self) -> None:
        asyncio.run(_replay(self.config, self.path))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        error = excinfo.value
        return str(error) if isinstance(error, HoldfastError) else super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"replay of {self.path.name}"


async def _replay(config: pytest.Config, path: Path) -> None:
    await replay_file(configured_app(config), path)
