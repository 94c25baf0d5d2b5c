"""How the management commands show things: tables and lines for people, coloured on a terminal, plain elsewhere.

Everything from a server goes through here as ``Text``, never as markup, and without control characters.
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

from holdfast.cli.safe import one_line, safe
from holdfast.cli.wire import Fields

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
_FILL = re.compile(r" +$", re.MULTILINE)
_PIPED_WIDTH = 100_000  # nothing is wrapped or cut for a program such as grep


def console() -> Console:
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_PIPED_WIDTH)


def coloured(word: str) -> Text:
    """A status or a level in its colour."""
    return Text(one_line(word), style=_STYLES.get(word, ""))


def line(text: str, style: str = "") -> Text:
    return Text(one_line(text), style=style)


def show_text(text: str) -> None:
    """As it is, line by line, for a program or a file as well."""
    console().print(Text(safe(text, keep="\n")), soft_wrap=True, end="")


def show_table(out: Console, shown: Table) -> None:
    """Without the spaces that fill the last column."""
    with out.capture() as captured:
        out.print(shown)
    out.file.write(_FILL.sub("", captured.get()))


def table(columns: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def without_empty(columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> Table:
    """A table without the columns in which nothing stands."""
    kept = [n for n in range(len(columns)) if any(row[n] for row in rows)]
    return table([columns[n] for n in kept], [[row[n] for n in kept] for row in rows])


def pairs(rows: Iterable[tuple[str, Text]]) -> Table:
    """Names on the left, what they say on the right."""
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, text in rows:
        shown.add_row(name, text)
    return shown


def when(at: datetime | None) -> str:
    """To the millisecond, in UTC; who calls says so beside it."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"


def when_utc(at: datetime | None) -> str:
    return f"{when(at)} UTC" if at is not None else ""


def brief(value: Any, width: int = 100) -> str:
    """A value as JSON on one line, cut."""
    text = one_line(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= width else text[: width - 1] + "…"


def whole(value: Any) -> Text:
    """A value as JSON over several lines, complete."""
    return Text(safe(json.dumps(value, ensure_ascii=False, indent=2), keep="\n"))


def error_text(error: Fields) -> str:
    name, message = one_line(error.text("name")), one_line(error.text("message"))
    return f"{name}: {message}" if name and message else name or message


def traceback_text(error: Fields) -> str:
    """The traceback of an error, if it has one, line by line."""
    return safe(error.text("traceback"), keep="\n")


def step_name(step: Fields) -> str:
    """Its key; of what a run did to others, for which the engine made the key, what and to whom."""
    key, kind, name = (one_line(step.text(field)) for field in ("stepKey", "type", "name"))
    if key.startswith("#") and kind not in ("do", "sleep", "waitForEvent"):
        return f"{kind} {name}"
    return key or name


def command(*words: str) -> Text:
    """A command to try next, ready to be copied."""
    return Text("  " + safe(shlex.join(words)), style="bold")


def log_line(log: Fields, *, time: bool = True) -> Text:
    """One log line; further lines of its message are indented, so that none can pass for another log line."""
    level, step, attempt = log.text("level"), log.text("stepKey"), log.number("attempt")
    text = Text(f"{when(log.time('createdAt'))}  " if time else "")
    text.append_text(Text(f"{one_line(level):<5}", style=_STYLES.get(level, "")))
    text.append(f"  {one_line(log.text('category'))}", style="dim")
    if step:
        text.append(f"  [{one_line(step)}" + (f", attempt {attempt}]" if attempt is not None else "]"), style="dim")
    if log.true("isReplay"):
        text.append("  (replayed)", style="dim")
    text.append("  " + safe(log.text("message"), keep="\n").replace("\n", "\n    "))
    if log.any("data") is not None:
        text.append("  " + brief(log.any("data"), 1000), style="dim")
    return text
