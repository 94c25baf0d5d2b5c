"""Options shared by the management commands, and their parsers. An invalid value ends with exit code 2."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Concatenate, NoReturn, ParamSpec
from urllib.parse import urlsplit

import typer

from holdfast.cli.remote import CommandFailedError, Connection, Remote
from holdfast.cli.terminal_text import escape_controls

P = ParamSpec("P")

URL_VARIABLE = "HOLDFAST_BASE_URL"
HEADERS_VARIABLE = "HOLDFAST_HEADERS"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  (of RFC 9110)
_HEADER = re.compile(rf"\s*({_TOKEN})\s*:\s*(.*?)\s*")
_BETWEEN_HEADERS = re.compile(rf"\n|;(?=\s*{_TOKEN}\s*:)|;\s*$", re.MULTILINE)
_CONTEXT = 30  # number of characters shown on both sides of an error in JSON


def read_base_url(text: str) -> str:
    """Check a base URL. Errors do not repeat the value, which may contain a password."""
    with suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment) and _port(text):
            return text.rstrip("/")
    raise typer.BadParameter("give the full base URL, such as http://127.0.0.1:8787/api/workflows")


def _port(url: str) -> bool:
    return urlsplit(url).port != 0  # raises ValueError for an invalid port


def read_seconds(text: str) -> float:
    from holdfast.core.durations import to_ms
    from holdfast.errors import InvalidDurationError

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
        raise typer.BadParameter("a timeout of 0 is too short")
    return seconds


def read_instant(text: str) -> str:
    """A time in ISO 8601; without a zone it is in UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("give a date and time in ISO 8601, such as 2026-11-16T09:00:00Z") from None
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).isoformat()


def read_json(text: str) -> str:
    """Check JSON text and return it unchanged, so that no number is rounded and no repeated key is lost."""
    try:
        text.encode()
        json.loads(text, parse_int=str, parse_float=str, parse_constant=functools.partial(_not_json, text))
    except json.JSONDecodeError as error:
        raise typer.BadParameter(_with_excerpt(error)) from None
    except UnicodeEncodeError as error:
        raise typer.BadParameter(_with_excerpt(json.JSONDecodeError("Not UTF-8", text, error.start))) from None
    except RecursionError:
        raise typer.BadParameter("nested too deeply") from None
    return text


def read_event(text: str) -> str:
    """Check ``TYPE`` or ``TYPE=JSON``."""
    type_, equals, payload = text.partition("=")
    if not type_:
        raise typer.BadParameter("an event has a type: TYPE or TYPE=JSON")
    if equals:
        read_json(payload)
    return text


def _not_json(text: str, constant: str) -> NoReturn:
    raise json.JSONDecodeError(f"{constant} is not JSON", text, _index_outside_strings(text, constant))


def _index_outside_strings(text: str, word: str) -> int:
    """Position of the first ``word`` outside JSON strings. Up to that position, ``text`` is valid JSON."""
    without_strings = re.sub(r'"(?:[^"\\]|\\.)*"', lambda string: " " * len(string[0]), text)
    return without_strings.index(word)


def _with_excerpt(error: json.JSONDecodeError) -> str:
    """The message of a JSON error, with the line and a mark under the invalid character."""
    from rich.cells import cell_len

    start = error.pos - error.colno + 1
    line, column = error.doc[start:].partition("\n")[0], error.pos - start
    left, right = max(column - _CONTEXT, 0), column + _CONTEXT
    before = ("…" if left else "") + escape_controls(line[left:column])
    after = escape_controls(line[column:right]) + ("…" if right < len(line) else "")
    mark = " " * cell_len(before) + "^"
    return f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}\n\n  {before}{after}\n  {mark}"


def read_headers(arguments: list[str] | None, environment: str) -> list[tuple[str, str]]:
    """The headers of the environment, overridden by those of the arguments. Errors do not show values."""
    overriding = [_header(text, f"-H number {n}") for n, text in enumerate(arguments or [], 1)]
    parts = [part for part in _BETWEEN_HEADERS.split(environment) if part.strip()]
    defaults = [_header(text, f"header {n} of ${HEADERS_VARIABLE}") for n, text in enumerate(parts, 1)]
    overridden = {name.lower() for name, _ in overriding}
    return [*(header for header in defaults if header[0].lower() not in overridden), *overriding]


def _header(text: str, source: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{source} is not of the form 'Name: value'", param_hint="'-H' / '--header'")
    if escape_controls(match[2], keep="\t") != match[2]:
        raise typer.BadParameter(f"{source} has control characters in its value", param_hint="'-H' / '--header'")
    return match[1], match[2]


def check_name(text: str | None) -> Any:
    if text in ("", ".", ".."):
        raise typer.BadParameter(f"{text!r} cannot be a name or an id")
    return text


def _names(texts: list[str] | None) -> list[str]:
    return [check_name(text) for text in texts or ()]


def _one_name(texts: list[str] | None) -> list[str]:
    if texts is not None and len(texts) > 1:
        raise typer.BadParameter("this command takes one instance; give one id")
    return _names(texts)


WorkflowName = Annotated[
    str, typer.Option("--workflow", "-w", metavar="WF", callback=check_name, help="The name of the workflow.")
]
InstanceId = Annotated[str, typer.Option("--id", "-i", metavar="ID", help="The id of the instance.")]
InstanceIds = Annotated[
    list[str],
    typer.Option(
        "--id", "-i", metavar="ID", callback=_names, help="The id of an instance; repeat the option for several."
    ),
]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="The reason, for the audit record.")]
_ONE_ID = Annotated[
    list[str], typer.Option("--id", "-i", metavar="ID", callback=_one_name, help="The id of the instance.")
]
"""``InstanceId`` for the parser. A list: of a repeated scalar option, the parser would silently use the last."""

_SHARED: dict[str, tuple[Any, Any]] = {
    "base_url": (
        Annotated[
            str,
            typer.Option(
                "--base-url",
                "-b",
                metavar="URL",
                envvar=URL_VARIABLE,
                parser=read_base_url,
                help="The full base URL of the API, such as http://127.0.0.1:8787/api/workflows.",
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
                help="Send this header; repeat the option for several. A header given here replaces the one of the "
                "same name in $HOLDFAST_HEADERS (one per line, or separated by ';'). Values are never printed.",
            ),
        ],
        None,
    ),
    "timeout": (
        Annotated[
            float,
            typer.Option(
                "--timeout",
                metavar="DURATION",
                parser=read_timeout,
                help="Time limit of each attempt: 10, '500 ms', '1 min'.",
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
                help="Number of retries after a network error, 5xx or 429. A request that must not be processed twice "
                "is repeated only if it certainly had no effect.",
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
                help="Delay before the first retry; it doubles each time. A longer Retry-After of the server is "
                "respected.",
            ),
        ],
        "0.5",
    ),
}


_ADDRESSES = Annotated[
    list[str] | None,
    typer.Argument(metavar="WORKFLOW/ID", show_default=False, help="The instance, instead of -w and -i."),
]


def _optional(annotation: Any) -> Any:
    """The annotation of an option that may be missing, because the instance can be given as WORKFLOW/ID."""
    return Annotated[annotation.__origin__ | None, annotation.__metadata__[0]]


def _optional_parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    annotation = {InstanceId: _ONE_ID}.get(parameter.annotation, parameter.annotation)
    if parameter.annotation not in (WorkflowName, InstanceId, InstanceIds):
        return parameter
    return parameter.replace(annotation=_optional(annotation), default=None)


def _addressed(own: dict[str, Any], ids: str, *, one: bool) -> list[dict[str, Any]]:
    """The arguments of a command for the instances that were given: as WORKFLOW/ID, or with -w and -i."""
    addresses, workflow, names = own.pop("address") or [], own.pop("workflow"), own.pop(ids) or []
    if addresses and (workflow or names):
        raise typer.BadParameter("give instances either as WORKFLOW/ID or with -w and -i, not both")
    if not addresses and not (workflow and names):
        raise typer.BadParameter("name the instance: WORKFLOW/ID, or -w WF -i ID")
    pairs = [_address(text) for text in addresses] or [(workflow, name) for name in names]
    if one:
        if len(pairs) > 1:
            raise typer.BadParameter("this command takes one instance")
        return [own | {"workflow": pairs[0][0], ids: pairs[0][1]}]
    grouped: dict[str, list[str]] = {}
    for name, id_ in pairs:
        grouped.setdefault(name, []).append(id_)
    return [own | {"workflow": name, ids: found} for name, found in grouped.items()]


def _address(text: str) -> tuple[str, str]:
    workflow, slash, id_ = text.partition("/")
    if not slash or not workflow or not id_ or "/" in id_:
        raise typer.BadParameter(f"{escape_controls(text)!r} is not of the form WORKFLOW/ID")
    return check_name(workflow), check_name(id_)


def remote_command(
    command: Callable[Concatenate[Remote, P], None], default_url: str | None = None
) -> Callable[..., None]:
    """Add the shared options to ``command``, and pass it a ``Remote`` made from them as its first argument.

    ``default_url``: the base URL of a command that does not always need a server. A command with a parameter of the
    type ``typer.Context`` is that of a group. If a command of the group is called, the group has no effect.
    """

    @functools.wraps(command)
    def run(
        *, base_url: str | None, header: list[str], timeout: float, retries: int, retry_delay: float, **own: Any
    ) -> None:
        if of_group and own["context"].invoked_subcommand is not None:
            _check_no_options(own["context"])
            return
        if base_url is None:
            raise typer.BadParameter(f"missing (env var: {URL_VARIABLE!r})", param_hint="'--base-url' / '-b'")
        headers = read_headers(header, os.environ.get(HEADERS_VARIABLE, ""))
        calls = [own] if addressed is None else _addressed(own, addressed.name, one=addressed.annotation == InstanceId)
        try:
            with Remote(Connection(base_url, headers, timeout, retries, retry_delay)) as remote:
                for arguments in calls:
                    command(remote, **arguments)  # type: ignore[call-arg]  # from the signature of ``command`` below
        except CommandFailedError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None

    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    of_group = any(p.annotation is typer.Context for p in own)
    addressed = next((p for p in own if p.annotation in (InstanceId, InstanceIds)), None)
    if addressed is not None:
        own = [_optional_parameter(p) for p in own]
        own.insert(0, inspect.Parameter("address", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_ADDRESSES))
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _SHARED.items()
    ]
    if default_url is not None:
        shared[0] = shared[0].replace(default=default_url)
    if of_group:
        shared[0] = shared[0].replace(annotation=_optional(shared[0].annotation), default=None)
    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *shared]
    parameters.sort(key=lambda p: p.name != "address" and p.default is not inspect.Parameter.empty)
    set_signature(run, inspect.Signature(parameters))
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _check_no_options(context: typer.Context) -> None:
    """Refuse options of a group before one of its commands, which has the same options and would not get these."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            command = f"{context.command_path} {context.invoked_subcommand}"
            raise typer.BadParameter(f"give --{name.replace('_', '-')} after `{command}`")


def set_signature(function: Any, signature: inspect.Signature) -> None:
    """Set the signature that other libraries read from a function."""
    function.__signature__ = signature
