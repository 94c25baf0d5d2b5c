"""Expands the placeholders in ``.sql`` files, apart from ``{schema}`` and ``{channel}``.

``{Status.WAITING}``
    A constant (``constants``).
``{planner.nested_loops}``, ``{planner.ordered_indexes}``
    Settings of the planner for a function that reads few rows of large tables.
``{fact.columns}``, ``{fact.columns f}``
    The columns of a record, without and with the alias of a table. Also of a part: ``{commit.facts.columns f}``.
``{commit.facts.parameters}``
    The parameters of a part in the signature of a function: ``p_f_commit INTEGER[], ...``.
``{commit.facts.names}``
    The names of these parameters.
``{commit.facts.rows}``, ``{commit.facts.numbered_rows}``
    The unnested arrays with the alias of the part: ``unnest(p_f_commit, ...) AS f (commit, ...)``. Numbered rows have
    the column ``ord``. ``{plans_and_units.facts.rows p_parts}``: the arrays are attributes of a composite value.
``{commit.facts.arguments}``, ``{commit.facts.typed_arguments}``
    The arguments of a statement: ``$5, ...`` or ``$5::INTEGER[], ...``. Their numbers follow those that are written
    out in the statement.

Without the name of a part (``{commit.parameters}``), all parts of the call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.store.postgres.columns import CALLS, RECORDS, Part, Record
from holdfast.store.postgres.constants import sql_literals

_ARGUMENT = re.compile(r"\$(\d+)")
_PLACEHOLDER = re.compile(r"\{(?P<path>[A-Za-z_]+(?:\.[A-Za-z_]+)*)(?: (?P<of>[a-z_]+))?\}")
_FOR_SCHEMA = {"schema", "channel"}
_PLANNER = {
    "planner.nested_loops": (
        "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off "
        "SET enable_mergejoin = off SET jit = off"
    ),
    "planner.ordered_indexes": (
        "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off "
        "SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"
    ),
}
"""Settings with which a plan does not depend on statistics, which are wrong while tables grow."""
_LITERALS = {**sql_literals(), **_PLANNER}


def expand(text: str) -> str:
    """Replace all placeholders. An unknown one is an error."""
    written_out = max(map(int, _ARGUMENT.findall(text)), default=0)
    return _PLACEHOLDER.sub(_Expansion(written_out).replacement, text)


class _Expansion:
    def __init__(self, last_argument: int) -> None:
        self._last_argument = last_argument

    def replacement(self, found: re.Match[str]) -> str:
        path, of = found["path"], found["of"]
        if path in _FOR_SCHEMA:
            return found[0]
        if path in _LITERALS:
            return _LITERALS[path]
        first, _, rest = path.partition(".")
        *names, form = rest.split(".")
        if first in RECORDS and form == "columns":
            return _columns(RECORDS[first], of)
        parts = CALLS[first].parts
        return self._in_form(form, [parts[name] for name in names] or list(parts.values()), of)

    def _in_form(self, form: str, parts: Sequence[Part], of: str | None) -> str:
        match form:
            case "columns":
                return ", ".join(_columns(part, of) for part in parts)
            case "parameters":
                return ", ".join(text for part in parts for text in part.parameters())
            case "names":
                return ", ".join(name for part in parts for name in part.parameter_names)
            case "rows":
                [part] = parts
                arrays = part.attribute_names(of) if of else part.parameter_names
                return f"unnest({', '.join(arrays)}) AS {part.alias} ({', '.join(part.names)})"
            case "numbered_rows":
                [part] = parts
                numbered = f"unnest({', '.join(part.parameter_names)}) WITH ORDINALITY"
                return f"{numbered} AS {part.alias} ({', '.join(part.names)}, ord)"
            case "arguments":
                return ", ".join(f"${self._next()}" for part in parts for _ in part.types)
            case "typed_arguments":
                return ", ".join(f"${self._next()}::{type_}" for part in parts for type_ in part.types)
            case _:
                raise KeyError(form)

    def _next(self) -> int:
        self._last_argument += 1
        return self._last_argument


def _columns(record: Record, alias: str | None) -> str:
    return ", ".join(f"{alias}.{name}" if alias else name for name in record.names)
