"""Output of the management commands: tables and lines, coloured on a terminal and plain elsewhere.

Every text from a server is printed as ``Text``, never as markup, with its control characters escaped.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.response_fields import Fields
from holdfast.cli.terminal_text import escape_controls, one_line

_STYLES = {
    "active": "cyan",
    "waiting": "yellow",
    "pending": "cyan",
    "paused": "magenta",
    "complete": "green",
    "completed": "green",
    "errored": "red",
    "terminated": "red",
    "cancelled": "red",
    "debug": "dim",
    "info": "cyan",
    "warn": "yellow",
    "error": "red",
    "READY": "cyan",
    "RUNNING": "cyan",
    "WAITING": "yellow",
    "DONE": "green",
    "COMPLETED": "green",
    "DEAD": "red",
    "FAILED": "red",
    "CANCELED": "red",
    "started": "cyan",
    "retrying": "yellow",
    "ok": "green",
    "delivered": "green",
    "parked": "red",
}
_TRAILING_SPACES = re.compile(r" +$", re.MULTILINE)
_PIPED_WIDTH = 100_000  # lines are neither wrapped nor truncated in a pipe, for programs such as grep


def console() -> Console:
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_PIPED_WIDTH)


def coloured(word: str) -> Text:
    """A status or a log level in its colour."""
    return Text(one_line(word), style=_STYLES.get(word, ""))


def line(text: str, style: str = "") -> Text:
    return Text(one_line(text), style=style)


def show_text(text: str) -> None:
    """Print text unwrapped, so that it can be piped to a program or a file."""
    console().print(Text(escape_controls(text, keep="\n")), soft_wrap=True, end="")


def show_table(out: Console, table: Table) -> None:
    """Print a table without the trailing spaces of its last column."""
    with out.capture() as captured:
        out.print(table)
    out.file.write(_TRAILING_SPACES.sub("", captured.get()))


def table(columns: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    result = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        result.add_column(column, overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result


def compact_table(columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> Table:
    """A table without its empty columns."""
    kept = [n for n in range(len(columns)) if any(row[n] for row in rows)]
    return table([columns[n] for n in kept], [[row[n] for n in kept] for row in rows])


def key_value_table(rows: Iterable[tuple[str, Text]]) -> Table:
    """A table with names on the left and values on the right."""
    result = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    result.add_column(style="dim", no_wrap=True)
    result.add_column(overflow="fold")
    for name, text in rows:
        result.add_row(name, text)
    return result


def timestamp(at: datetime | None) -> str:
    """A time in UTC with milliseconds. The text has no zone: callers print "UTC" near it."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"


def timestamp_utc(at: datetime | None) -> str:
    return f"{timestamp(at)} UTC" if at is not None else ""


def short_json(value: Any, width: int = 100) -> str:
    """A value as JSON on one line, truncated to ``width``."""
    text = one_line(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= width else text[: width - 1] + "…"


def full_json(value: Any) -> Text:
    """A value as indented JSON, not truncated."""
    return Text(escape_controls(json.dumps(value, ensure_ascii=False, indent=2), keep="\n"))


def error_text(error: Fields) -> str:
    name, message = one_line(error.text("name")), one_line(error.text("message"))
    return f"{name}: {message}" if name and message else name or message


def traceback_text(error: Fields) -> str:
    """The traceback of an error, or an empty text."""
    return escape_controls(error.text("traceback"), keep="\n")


def step_name(step: Fields) -> str:
    """The key of a step. For an operation, whose key the engine generated: the operation and its target."""
    key, kind, name = (one_line(step.text(field)) for field in ("stepKey", "type", "name"))
    if key.startswith("#") and kind not in ("do", "sleep", "waitForEvent"):
        return f"{kind} {name}"
    return key or name


def command(*words: str) -> Text:
    """A suggested command, quoted for the shell."""
    return Text("  " + escape_controls(shlex.join(words)), style="bold")


def log_line(log: Fields, *, time: bool = True) -> Text:
    """One log line. Further lines of the message are indented, so that none looks like another log line."""
    level, step, attempt = log.text("level"), log.text("stepKey"), log.number("attempt")
    text = Text(f"{timestamp(log.time('createdAt'))}  " if time else "")
    text.append_text(Text(f"{one_line(level):<5}", style=_STYLES.get(level, "")))
    text.append(f"  {one_line(log.text('category'))}", style="dim")
    if step:
        text.append(f"  [{one_line(step)}" + (f", attempt {attempt}]" if attempt is not None else "]"), style="dim")
    if log.true("isReplay"):
        text.append("  (replayed)", style="dim")
    text.append("  " + escape_controls(log.text("message"), keep="\n").replace("\n", "\n    "))
    if log.any("data") is not None:
        text.append("  " + short_json(log.any("data"), 1000), style="dim")
    return text
