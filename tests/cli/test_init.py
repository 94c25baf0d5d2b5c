"""``holdfast init`` makes a project whose tests pass, and changes no existing file."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from holdfast.cli.errors import WrongUsageError
from holdfast.cli.loading import load_app
from holdfast.cli.main import cli


def _init(*arguments: str) -> None:
    CliRunner().invoke(cli, ["init", *arguments], catch_exceptions=False)


def test_the_tests_of_a_new_project_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    _init("shop_1")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin"],
        cwd=tmp_path / "shop_1",
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([".", *filter(None, sys.path)]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the other plugins of this environment take seconds to load
        },
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert b"2 passed" in done.stdout
    assert not [*(tmp_path / "shop_1").glob("*.db")]


def test_the_files_of_a_new_project_fit_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _init("bakery", "--dir", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])

    app = load_app("bakery:app", tmp_path)
    compose = yaml.safe_load((tmp_path / "compose.yaml").read_text())
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(tmp_path / "deploy" / "bakery-worker.service")
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())

    assert [definition.name for definition in app.registry] == ["fulfil"]
    assert set(compose["services"]) == {"database", "migrate", "worker", "api"}
    assert compose["services"]["api"]["ports"] == ["127.0.0.1:8787:8787"]
    assert "bakery:app" in unit["Service"]["ExecStart"]
    assert int(unit["Service"]["TimeoutStopSec"]) > 60
    assert project["project"]["name"] == "bakery"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "@name@" in path.read_text(errors="ignore")]
    for command in (compose["services"][name]["command"] for name in ("migrate", "api")):
        assert CliRunner().invoke(cli, [command[1], "--help"]).exit_code == 0


@pytest.mark.parametrize("name", ["Shop", "class", "holdfast", "../shop", "1shop", ""])
def test_a_name_that_cannot_be_a_package_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(WrongUsageError, match="not a name"):
        _init(name)

    assert [*tmp_path.iterdir()] == []


def test_an_existing_file_is_kept_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("mine")

    with pytest.raises(WrongUsageError, match="Dockerfile: exists already"):
        _init("shop", "--dir", str(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ["Dockerfile"]
    assert (tmp_path / "Dockerfile").read_text() == "mine"
