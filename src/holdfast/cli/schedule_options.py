"""The options of ``holdfast schedules create`` and ``update``, and their form in a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast.cli.control_commands import json_object, search_object

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]
Note = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Shown with the schedule and audited.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Audited with the change.")]
Crons = Annotated[
    list[str] | None,
    typer.Option("--cron", metavar="TEXT", help="'0 3 * * *', or six fields with seconds; repeatable."),
]
Every = Annotated[str | None, typer.Option("--every", metavar="DURATION", help="An interval: '30 seconds', 1h.")]
Offset = Annotated[
    str | None, typer.Option("--offset", metavar="DURATION", help="Delays the ticks of --every by this time.")
]
Calendars = Annotated[
    list[str] | None,
    typer.Option("--calendar", metavar="TEXT", help="'last weekday of the month at 18:00'; repeatable."),
]
Excluded = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="TEXT", help="Dates, ranges, days in words or cron texts; repeatable."),
]
Zone = Annotated[str | None, typer.Option("--timezone", metavar="ZONE", help="Such as Europe/Berlin; default UTC.")]
OverlapOption = Annotated[
    str | None,
    typer.Option(
        "--overlap", metavar="POLICY", help="skip, queue_one, queue_all, cancel_running, terminate_running or allow."
    ),
]
CatchUp = Annotated[
    str | None,
    typer.Option("--catch-up", metavar="DURATION", help="'last', or the maximum age of a missed tick that still runs."),
]
Jitter = Annotated[str | None, typer.Option("--jitter", metavar="DURATION", help="The longest delay of a tick.")]
Start = Annotated[str | None, typer.Option("--start", metavar="TIME", help="The first moment: 2030-01-01T00:00:00Z.")]
End = Annotated[str | None, typer.Option("--end", metavar="TIME", help="The last moment: 2030-12-31T00:00:00Z.")]
Cleared = Annotated[
    list[str] | None,
    typer.Option(
        "--clear", metavar="OPTION", help="Remove this option: jitter, catch-up, run-timeout ...; repeatable."
    ),
]

_CLEARED = {
    "params": "null", "cron": "null", "every": "null", "offset": "null", "calendar": "null", "exclude": "null",
    "start": "null", "end": "null", "jitter": "null", "catch-up": "null", "execution-timeout": "null",
    "run-timeout": "null", "task-timeout": "null", "retry": "null", "summary": "null", "search": "{}", "memo": "{}",
    "context": "{}",
}  # fmt: skip
"""Options that can be removed, and the value that removes them."""


def schedule_body(
    *,
    params: str | None,
    retry: str | None,
    memo: str | None,
    context: str | None,
    search: Sequence[str] | None,
    clear: Sequence[str] | None = None,
    **values: object,
) -> str:
    """The body of a request. Options that were not given are absent, and those in ``clear`` have no value."""
    texts: dict[str, str | None] = {
        _field(name): json.dumps(value) for name, value in values.items() if value is not None and value != []
    }
    given = {"params": params, "retry": retry, "memo": memo, "context": context, "search": search_object(search)}
    texts |= {name: text for name, text in given.items() if text is not None}
    for option in clear or ():
        if option not in _CLEARED:
            raise typer.BadParameter(f"{option!r} is none of {', '.join(_CLEARED)}", param_hint="'--clear'")
        name = _field(option.replace("-", "_"))
        if name in texts:
            raise typer.BadParameter(f"--{option} and --clear {option} exclude each other")
        texts[name] = _CLEARED[option]
    return json_object(**texts)


def _field(name: str) -> str:
    """The name of an option in a request."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)
