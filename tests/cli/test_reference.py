"""The help of the commands, the page generated from it, and the imports of the management commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grimp
import pytest
import typer

from holdfast.cli.main import cli
from holdfast.cli.reference import CURLS, reference

from .running import holdfast
from .scripted import Response, ScriptedServer

ROOT = Path(__file__).parents[2]
MANAGEMENT = (
    "instances",
    "control_commands",
    "create_many",
    "repair_commands",
    "selection",
    "start_options",
    "observe",
    "model_commands",
    "view_commands",
    "stack_text",
    "diff",
    "errors",
    "workflows",
    "options",
    "remote",
    "views",
    "output",
    "timeline",
    "history_pages",
    "follow",
    "response_fields",
    "terminal_text",
)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(typer.main.get_command(cli)))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_help_has_examples_of_that_command(path: tuple[str, ...]) -> None:
    text = ALL[path].help

    assert "\nExamples" in text
    assert f"\n  {' '.join(['holdfast', *path])}" in text


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    unexplained = [p.name for p in ALL[path].params if not getattr(p, "hidden", False) and not p.help]

    assert unexplained == []


@pytest.mark.parametrize(
    "arguments", [["-h"], ["instances", "--help"], ["instances", "list", "--help"], ["serve", "-h"]]
)
def test_help_is_shown(arguments: list[str]) -> None:
    done = holdfast(*arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Examples" in done.stdout


def test_exit_codes_are_in_the_help() -> None:
    assert "Exit codes:" in holdfast("--help").stdout


def test_the_shell_can_complete_commands() -> None:
    environment = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast instances re", "COMP_CWORD": "2"}

    done = holdfast("", **environment)

    assert done.stdout.split() == ["resume", "restart", "retry", "resolve", "redeliver"]


def test_the_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "cli.md"

    assert page.read_text() == reference(), "run: python -m holdfast.cli.reference > docs/cli.md"


def test_the_script_prints_the_page() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.reference"], capture_output=True, text=True, timeout=300, check=True
    )

    assert done.stdout == reference()


# --- HTTP only


def test_management_commands_import_no_engine_no_store_and_no_loader() -> None:
    graph = grimp.build_graph("holdfast", cache_dir=None)
    allowed = {f"holdfast.cli.{name}" for name in MANAGEMENT} | {
        "holdfast.errors",
        "holdfast.core.condition_text",
        "holdfast.core.durations",
        "holdfast.core.show",
    }

    for name in MANAGEMENT:
        imported = graph.find_upstream_modules(f"holdfast.cli.{name}")
        assert imported <= allowed, name


def test_management_commands_need_neither_a_database_nor_an_app(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("raise SystemExit('user code was run')")
    with ScriptedServer().running() as server:
        server.will_respond(Response(200, {"workflows": []}))
        done = holdfast(
            "workflows", "list", "-b", server.base, cwd=tmp_path, HOLDFAST_DATABASE_URL="sqlite:////nowhere/at/all.db"
        )

    assert (done.returncode, done.stdout, done.stderr) == (0, "The server has no workflows.\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["shop.py"]


def test_help_loads_neither_http_nor_tables() -> None:
    """Help and completion stay fast."""
    code = "import sys, holdfast.cli.main; print(*sorted({'httpx', 'rich', 'uvicorn', 'fastapi'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)

    assert done.stdout.split() == []


MANAGED = [path for path, command in ALL.items() if any("--base-url" in option.opts for option in command.params)]
"""The commands that send requests."""


@pytest.mark.parametrize("path", MANAGED, ids=" ".join)
def test_the_page_shows_a_request_for_each_management_command(path: tuple[str, ...]) -> None:
    command = " ".join(path)

    assert any(known == command or known.startswith(f"{command} ") for known in CURLS)


def test_every_request_on_the_page_has_a_command() -> None:
    assert [known for known in CURLS if not any(known.split()[: len(path)] == [*path] for path in MANAGED)] == []
