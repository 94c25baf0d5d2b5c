"""The options that every management command has, and how their texts are read. Wrong ones end with exit code 2."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Concatenate, NoReturn, ParamSpec
from urllib.parse import urlsplit

import typer

from holdfast.cli.remote import CommandFailedError, Connection, Remote
from holdfast.cli.safe import safe

P = ParamSpec("P")

HEADERS_VARIABLE = "HOLDFAST_HEADERS"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  (of RFC 9110)
_HEADER = re.compile(rf"\s*({_TOKEN})\s*:\s*(.*?)\s*")
_BETWEEN_HEADERS = re.compile(rf"\n|;(?=\s*{_TOKEN}\s*:)|;\s*$", re.MULTILINE)
_AROUND = 30  # characters shown on both sides of a mistake


def read_base_url(text: str) -> str:
    """The value is not repeated in an error: it may hold a password."""
    with suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment) and _port(text):
            return text.rstrip("/")
    raise typer.BadParameter("give the full base, such as http://127.0.0.1:8787/api/workflows")


def _port(url: str) -> bool:
    return urlsplit(url).port != 0  # raises ValueError when it is no port at all


def read_seconds(text: str) -> float:
    from holdfast.core.durations import to_ms  # noqa: PLC0415
    from holdfast.errors import InvalidDurationError  # noqa: PLC0415

    value: float | str = text
    with suppress(ValueError):
        value = float(text)
    try:
        return to_ms(value, "duration") / 1000
    except InvalidDurationError as error:
        raise typer.BadParameter(str(error)) from None


def read_timeout(text: str) -> float:
    seconds = read_seconds(text)
    if seconds == 0:
        raise typer.BadParameter("no time at all is too short")
    return seconds


def read_json(text: str) -> str:
    """Checks ``text`` and returns it as it is, so that no number in it is rounded and no repeated key is lost."""
    try:
        text.encode()
        json.loads(text, parse_int=str, parse_float=str, parse_constant=functools.partial(_not_json, text))
    except json.JSONDecodeError as error:
        raise typer.BadParameter(_pointed_at(error)) from None
    except UnicodeEncodeError as error:
        raise typer.BadParameter(_pointed_at(json.JSONDecodeError("Not UTF-8", text, error.start))) from None
    except RecursionError:
        raise typer.BadParameter("nested too deeply") from None
    return text


def read_event(text: str) -> str:
    """Checks ``TYPE`` or ``TYPE=JSON``."""
    type_, equals, payload = text.partition("=")
    if not type_:
        raise typer.BadParameter("an event has a type: TYPE or TYPE=JSON")
    if equals:
        read_json(payload)
    return text


def _not_json(text: str, constant: str) -> NoReturn:
    raise json.JSONDecodeError(f"{constant} is not JSON", text, _outside_strings(text, constant))


def _outside_strings(text: str, word: str) -> int:
    """Where ``word`` stands when the strings are taken out (up to the mistake, ``text`` is JSON)."""
    blank = re.sub(r'"(?:[^"\\]|\\.)*"', lambda string: " " * len(string[0]), text)
    return blank.index(word)


def _pointed_at(error: json.JSONDecodeError) -> str:
    """The line with the mistake and a mark under the character."""
    from rich.cells import cell_len  # noqa: PLC0415

    start = error.pos - error.colno + 1
    line, column = error.doc[start:].partition("\n")[0], error.pos - start
    left, right = max(column - _AROUND, 0), column + _AROUND
    before = ("…" if left else "") + safe(line[left:column])
    after = safe(line[column:right]) + ("…" if right < len(line) else "")
    mark = " " * cell_len(before) + "^"
    return f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}\n\n  {before}{after}\n  {mark}"


def read_headers(arguments: list[str] | None, environment: str) -> list[tuple[str, str]]:
    """Those of the environment, with the arguments in place of the ones they name again. Errors show no value."""
    given = [_header(text, f"-H number {n}") for n, text in enumerate(arguments or [], 1)]
    parts = [part for part in _BETWEEN_HEADERS.split(environment) if part.strip()]
    kept = [_header(text, f"header {n} of ${HEADERS_VARIABLE}") for n, text in enumerate(parts, 1)]
    named = {name.lower() for name, _ in given}
    return [*(pair for pair in kept if pair[0].lower() not in named), *given]


def _header(text: str, place: str) -> tuple[str, str]:
    found = _HEADER.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{place} is not of the form 'Name: value'", param_hint="'-H' / '--header'")
    if safe(found[2], keep="\t") != found[2]:
        raise typer.BadParameter(f"{place} has control characters in its value", param_hint="'-H' / '--header'")
    return found[1], found[2]


def _name(text: str) -> str:
    if text in ("", ".", ".."):
        raise typer.BadParameter("this cannot be a name")
    return text


def _names(texts: list[str]) -> list[str]:
    return [_name(text) for text in texts]


def _one_name(texts: list[str]) -> list[str]:
    if len(texts) > 1:
        raise typer.BadParameter("this command is about one instance; give one id")
    return _names(texts)


WorkflowName = Annotated[
    str, typer.Option("--workflow", "-w", metavar="WF", callback=_name, help="The name of the workflow.")
]
InstanceId = Annotated[str, typer.Option("--id", "-i", metavar="ID", help="The id of the instance.")]
InstanceIds = Annotated[
    list[str],
    typer.Option("--id", "-i", metavar="ID", callback=_names, help="The id of an instance; repeat it for several."),
]
_ONE_ID = Annotated[
    list[str], typer.Option("--id", "-i", metavar="ID", callback=_one_name, help="The id of the instance.")
]
"""``InstanceId`` as the parser sees it: of a plain option that is given twice, it would silently take the last."""

_SHARED: dict[str, tuple[Any, Any]] = {
    "base_url": (
        Annotated[
            str,
            typer.Option(
                "--base-url",
                "-b",
                metavar="URL",
                envvar="HOLDFAST_BASE_URL",
                parser=read_base_url,
                help="The full base of the API, such as http://127.0.0.1:8787/api/workflows.",
            ),
        ],
        inspect.Parameter.empty,
    ),
    "header": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--header",
                "-H",
                metavar="'NAME: VALUE'",
                help="Send this header; repeat it for several. They add to, and replace, those in $HOLDFAST_HEADERS "
                "(one per line, or with ';' between them). Values are never printed.",
            ),
        ],
        None,
    ),
    "timeout": (
        Annotated[
            float,
            typer.Option(
                "--timeout", metavar="DURATION", parser=read_timeout, help="For each attempt: 10, '500 ms', '1 min'."
            ),
        ],
        "30",
    ),
    "retries": (
        Annotated[
            int,
            typer.Option(
                "--retries",
                metavar="N",
                min=0,
                max=100,
                help="How often to try again after a network error, 5xx or 429. What must not happen twice is repeated "
                "only if it certainly did not happen.",
            ),
        ],
        3,
    ),
    "retry_delay": (
        Annotated[
            float,
            typer.Option(
                "--retry-delay",
                metavar="DURATION",
                parser=read_seconds,
                help="Before the first retry; doubles each time. A Retry-After of the server is waited for.",
            ),
        ],
        "0.5",
    ),
}


def remote_command(command: Callable[Concatenate[Remote, P], None]) -> Callable[..., None]:
    """Gives ``command`` the shared options, and passes it the server they name as its first argument."""

    @functools.wraps(command)
    def run(*, base_url: str, header: list[str], timeout: float, retries: int, retry_delay: float, **own: Any) -> None:
        headers = read_headers(header, os.environ.get(HEADERS_VARIABLE, ""))
        own |= {name: own[name][0] for name in ids}
        try:
            with Remote(Connection(base_url, headers, timeout, retries, retry_delay)) as remote:
                command(remote, **own)  # type: ignore[call-arg]  # they are what its signature says
        except CommandFailedError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None

    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    ids = [p.name for p in own if p.annotation == InstanceId]
    own = [p.replace(annotation=_ONE_ID) if p.name in ids else p for p in own]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _SHARED.items()
    ]
    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *shared]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
