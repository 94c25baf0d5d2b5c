"""Writes the reference of the commands from the commands: ``python -m holdfast.cli.reference > docs/cli.md``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

_OF_TYPER = ("install_completion", "show_completion")  # they are explained once; their text is typer's
_INTRODUCTION = """\
# The command line

The text of `holdfast --help`, of every command. This page is made from the commands, by
`python -m holdfast.cli.reference > docs/cli.md`. What to look at when a run does not do what it should is in
[debugging](debugging.md). `holdfast --install-completion` teaches your shell to complete the commands.
"""


def reference() -> str:
    from holdfast.cli.main import cli  # noqa: PLC0415  (it imports the world of commands)

    return "\n".join([_INTRODUCTION, *_command(typer.main.get_command(cli), "holdfast")])


def _command(command: Any, path: str) -> Iterator[str]:
    """``command`` is a click command; which click, depends on the version of typer."""
    yield f"## `{path}`\n"
    yield from _help(inspect.cleandoc(command.help or ""))
    rows = [_row(parameter) for parameter in command.params if not _left_out(parameter)]
    if rows:
        yield "| option | |\n|---|---|"
        yield "\n".join(rows) + "\n"
    for name, inner in getattr(command, "commands", {}).items():
        yield from _command(inner, f"{path} {name}")


def _help(text: str) -> Iterator[str]:
    """Paragraphs as they are; what is marked to keep its lines, as a block."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            title, _, rest = paragraph.removeprefix("\b\n").partition("\n")
            yield f"{title}\n\n```\n{inspect.cleandoc(rest)}\n```\n"
        else:
            yield f"{paragraph}\n"


def _left_out(parameter: Any) -> bool:
    return getattr(parameter, "hidden", False) or parameter.name in _OF_TYPER


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar}`"
    else:
        value = "" if parameter.metavar is None else f" {parameter.metavar}"
        names = ", ".join(f"`{name}{value}`" for name in [*parameter.opts, *parameter.secondary_opts])
    return f"| {names} | {' '.join(_about(parameter))} |".replace("\n", " ")


def _about(parameter: Any) -> Iterator[str]:
    yield parameter.help or ""
    if parameter.envvar:
        yield f"Or `${parameter.envvar}`."
    if parameter.required:
        yield "Required."
    elif parameter.default not in (None, False, True):
        yield f"Default: `{parameter.default}`."


if __name__ == "__main__":
    print(reference(), end="")
