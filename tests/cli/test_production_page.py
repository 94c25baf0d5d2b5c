"""The commands in ``docs/production.md`` are valid: the command line can parse each of them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from holdfast.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "production.md"


def page_commands() -> list[list[str]]:
    text = PAGE.read_text()
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"(?:^|ExecStart=\S*/|  )holdfast (.+)$", blocks, re.MULTILINE)
    lists = [json.loads(words)[1:] for words in re.findall(r"^CMD (.+)$", blocks, re.MULTILINE)]
    return [*(shlex.split(line, comments=True) for line in lines), *lists]


@pytest.mark.parametrize("arguments", page_commands(), ids=" ".join)
def test_a_command_of_the_page_can_be_parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "sqlite://")
    group = typer.main.get_command(cli)
    command = group.get_command(typer.Context(group), arguments[0])  # type: ignore[attr-defined]

    command.make_context(arguments[0], arguments[1:])


def test_the_page_has_commands() -> None:
    assert {arguments[0] for arguments in page_commands()} == {"worker", "migrate", "move"}
    assert len(page_commands()) >= 9
