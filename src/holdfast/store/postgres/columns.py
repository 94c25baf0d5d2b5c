"""The columns of the rows that calls pass to functions in the database. There is no other list of them.

The rows of one kind are a ``Part`` of a call, and are passed as one array per column. A part gives the parameters of
the function, the arguments in the statement that calls it, the rows that the function unnests, and the arrays
themselves. ``sql_template`` says how a ``.sql`` file names them.

A function keeps its arguments for one release (see ``sql``). A part with other columns therefore needs a function with
another name.

An array of a composite type would be one argument instead of eighteen, and take two thirds of the time. But composite
types are created by migrations, so every change of the columns would need a migration of the types too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.store.postgres.text import decode_text, encode_text
from holdfast.store.postgres.tx import Row


class Column(NamedTuple):
    name: str
    type: str
    """The SQL type of one value."""
    text: bool = False
    """Free text: a ``str`` in Python, stored as bytes."""


class Record:
    """The columns of one row: a tuple of the values in this order, such as a NamedTuple of the store protocol."""

    def __init__(self, *columns: Column) -> None:
        self._columns = columns
        self.names = [column.name for column in columns]
        self._texts = [n for n, column in enumerate(columns) if column.text]

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def encode(self, row: Row) -> list[Any]:
        """The values of one row as PostgreSQL stores them."""
        values = list(row)
        for n in self._texts:
            values[n] = encode_text(values[n])
        return values

    def decode(self, row: Row) -> list[Any]:
        """The values of a stored row as Python uses them."""
        values = list(row)
        for n in self._texts:
            values[n] = decode_text(values[n])
        return values

    def arrays(self, rows: Sequence[Row]) -> list[Row]:
        """One array per column."""
        if not rows:
            return [()] * len(self)
        arrays: list[Row] = list(zip(*rows, strict=True))
        for n in self._texts:
            arrays[n] = [encode_text(text) for text in arrays[n]]
        return arrays


class Part(Record):
    """Parameters of a function: an array for each column, or one value for each (``scalar``).

    ``prefix`` begins the names of the parameters, and is the alias of the unnested rows. The parameters of an
    ``optional`` part have the default NULL.
    """

    def __init__(
        self, prefix: str, columns: Iterable[Column], *, scalar: bool = False, optional: bool = False, alias: str = ""
    ) -> None:
        super().__init__(*columns)
        self.alias = alias or prefix
        self.types = [column.type if scalar else f"{column.type}[]" for column in self]
        self.parameter_names = [f"p_{prefix}_{name}" if prefix else f"p_{name}" for name in self.names]
        self._default = " = NULL" if optional else ""

    def attribute_names(self, value: str) -> list[str]:
        """The arrays as attributes of a composite value."""
        return [f"{value}.{self.alias}_{name}" for name in self.names]

    def parameters(self) -> list[str]:
        named = zip(self.parameter_names, self.types, strict=True)
        return [f"{name} {type_}{self._default}" for name, type_ in named]


class Call:
    """The parts of a call, in the order of its arguments."""

    def __init__(self, **parts: Part) -> None:
        self.parts = parts

    def arrays(self, **rows: Sequence[Row]) -> list[Row]:
        """The arrays of all parts; each part is given as its rows."""
        return [array for name, part in self.parts.items() for array in part.arrays(rows[name])]


def _columns(type_: str, names: str) -> tuple[Column, ...]:
    return tuple(Column(name, type_) for name in names.split())


def _renamed(columns: Iterable[Column], **names: str) -> list[Column]:
    return [column._replace(name=names.get(column.name, column.name)) for column in columns]


TASK = Record(
    Column("run", "BIGINT"),
    Column("unit", "BIGINT"),
    Column("owner", "TEXT"),
    Column("epoch", "BIGINT"),
)
FACT = Record(
    Column("state", "INTEGER"),
    Column("key", "BYTEA", text=True),
    Column("n", "BIGINT"),
    Column("kind", "TEXT"),
    Column("at", "BIGINT"),
    Column("started_at", "BIGINT"),
    Column("seq", "BIGINT"),
    Column("ok", "BOOLEAN"),
    Column("value", "BYTEA"),
    Column("name", "BYTEA", text=True),
    Column("attempts", "BIGINT"),
    Column("max_attempts", "BIGINT"),
    Column("timeout_ms", "BIGINT"),
    Column("wake_at", "BIGINT"),
    Column("event_type", "TEXT"),
    Column("event", "BIGINT"),
)
FACT_COMMON, FACT_RARE = [*FACT][:13], [*FACT][13:]
"""Columns of every fact, and columns that are NULL in the result of a step."""
LOG = Record(
    Column("level", "TEXT"),
    Column("category", "TEXT"),
    Column("message", "BYTEA", text=True),
    Column("data", "BYTEA"),
    Column("at", "BIGINT"),
    Column("step_key", "BYTEA", text=True),
    Column("attempt", "BIGINT"),
    Column("is_replay", "BOOLEAN"),
)
DELIVERY = Record(Column("event", "BIGINT"), Column("key", "BYTEA", text=True), Column("at", "BIGINT"))
OUTBOUND = Record(
    Column("type", "BYTEA", text=True),
    Column("payload", "BYTEA"),
    Column("step", "BYTEA", text=True),
    Column("trace", "TEXT"),
)
UNIT = Record(Column("unit", "BIGINT"), Column("key", "BYTEA", text=True), Column("missing", "BIGINT"))
TERM = Record(Column("key", "BYTEA", text=True), Column("text", "BYTEA", text=True), Column("number", "NUMERIC"))
EVENT = Record(
    *_columns("TEXT", "workflow instance_id type"),
    Column("payload", "BYTEA"),
    Column("sender", "BYTEA", text=True),
    Column("dedup", "BYTEA"),
    Column("token", "BIGINT"),
    Column("ask", "BYTEA", text=True),
    Column("owner", "TEXT"),
    Column("lease_ms", "BIGINT"),
    *_columns("TEXT", "queues version trace"),
)
NEW_RUN = Record(
    Column("token", "BIGINT"),
    *_columns("TEXT", "workflow instance_id kind"),
    Column("params", "BYTEA"),
    Column("queue", "TEXT"),
    *_columns("BIGINT", "priority delay_ms seed"),
    Column("owner", "TEXT"),
    Column("lease_ms", "BIGINT"),
)
NEW_RUN_OPTIONS = Record(
    *_columns("TEXT", "on_conflict on_reuse"),
    *_columns("BYTEA", "options memo search"),
    *_columns("BIGINT", "reuse_after_ms expires_ms"),
    *_columns("TEXT", "expiry parent"),
    Column("parent_run", "BIGINT"),
    Column("parent_close", "TEXT"),
    Column("watch", "INTEGER"),
    Column("sender", "BYTEA", text=True),
    *_columns("TEXT", "fair_limit fair_key"),
    Column("version", "TEXT"),
    Column("pinned", "BOOLEAN"),
)
"""Columns that most runs leave at their defaults; a default is NULL."""
NEW_RUN_RARE = Record(
    *NEW_RUN_OPTIONS,
    *_columns("INTEGER", "start_events_from start_events_to terms_from terms_to"),
    Column("units", "BIGINT"),
)
START_EVENT = Record(Column("type", "TEXT"), Column("payload", "BYTEA"))
CONDITION = Record(
    Column("key", "BYTEA", text=True),
    Column("op", "TEXT"),
    Column("text", "BYTEA", text=True),
    Column("number", "NUMERIC"),
)
LEASE = Record(*TASK, Column("lease_ms", "BIGINT"))
HEARTBEAT = Record(
    *TASK,
    Column("key", "BYTEA", text=True),
    Column("n", "BIGINT"),
    Column("kind", "TEXT"),
    *_columns("BIGINT", "at started_at"),
    Column("value", "BYTEA"),
    *_columns("BIGINT", "max_attempts timeout_ms"),
)
OUTCOME = Record(*_columns("BIGINT", "run n"), Column("error", "BYTEA", text=True), Column("run_at", "BIGINT"))
END = Record(
    Column("status", "TEXT"),
    Column("output", "BYTEA"),
    Column("error", "BYTEA"),
    Column("note", "BYTEA", text=True),
)
END_COMMON, END_RARE = [*END][:2], [*END][2:]
"""Columns of the end of every run, and columns that are NULL if the run completes without a note."""
RELEASE = Record(
    Column("run_at", "BIGINT"),
    Column("kind", "INTEGER"),
    Column("bucket", "INTEGER"),
    Column("topics", "TEXT"),
)
_NEEDS = Column("needs", "INTEGER")
"""The lowest verdict with which the row is written."""


def _of(owner: str) -> Column:
    """The position of the commit, advance or run that the row belongs to, counted from 1."""
    return Column(owner, "INTEGER")


COMMIT = Call(
    commits=Part(
        "c",
        (
            *TASK,
            *_columns("BIGINT", "in_flight started_at seen"),
            Column("progress", "BOOLEAN"),
            Column("next", "INTEGER"),
            *END,
            *RELEASE,
        ),
    ),
    facts=Part("f", (_of("commit"), _NEEDS, *FACT)),
    deliveries=Part("d", (_of("commit"), *DELIVERY)),
    logs=Part("l", (_of("commit"), _NEEDS, *LOG)),
    outbox=Part("o", (_of("commit"), *OUTBOUND)),
)
ADVANCE = Call(
    advances=Part("a", (*TASK, Column("release", "BOOLEAN"), *_columns("BIGINT", "run_at missing seen started_at"))),
    facts=Part("f", (_of("advance"), *FACT)),
    logs=Part("l", (_of("advance"), *LOG)),
    deliveries=Part("d", (_of("advance"), *DELIVERY)),
    decrements=Part("m", (_of("advance"), *_columns("BIGINT", "unit decrement"))),
    removed_units=Part("x", (_of("advance"), Column("unit", "BIGINT"))),
    new_units=Part("u", (_of("advance"), *UNIT)),
)
COMMIT_ONE = Call(
    common=Part(
        "",
        (
            Column("store", "TEXT"),
            *TASK,
            *_renamed(FACT_COMMON, n="fact_n"),
            Column("run_started_at", "BIGINT"),
            Column("next", "INTEGER"),
            *END_COMMON,
            Column("token", "BIGINT"),
        ),
        scalar=True,
    ),
    rare=Part(
        "",
        (
            *FACT_RARE,
            *_renamed(DELIVERY, event="d_event", key="d_key", at="d_at"),
            *END_RARE,
            *_renamed(RELEASE, kind="task_kind"),
            Column("seen", "BIGINT"),
            Column("sequence", "INTEGER"),
            *_columns("BIGINT", "n now"),
        ),
        scalar=True,
        optional=True,
    ),
)
SEND_PREDICTED = Call(
    common=Part(
        "",
        (
            Column("store", "TEXT"),
            *_columns("BIGINT", "run epoch n at"),
            Column("type", "TEXT"),
            Column("payload", "BYTEA"),
            Column("token", "BIGINT"),
            Column("key", "BYTEA", text=True),
            Column("kind", "TEXT"),
            *_columns("BIGINT", "started_at seq wake_at"),
            Column("next", "INTEGER"),
            *END_COMMON,
        ),
        scalar=True,
    ),
    rare=Part(
        "",
        (
            *END_RARE,
            *_renamed(RELEASE, kind="task_kind"),
            Column("sender", "BYTEA", text=True),
            Column("dedup", "BYTEA", text=True),
            *_columns("TEXT", "owner version"),
            *_columns("BIGINT", "lease_ms now"),
            Column("trace", "TEXT"),
        ),
        scalar=True,
        optional=True,
    ),
)
SEND = Call(events=Part("", EVENT, alias="a"))
SEND_ONE = Call(event=Part("", EVENT, scalar=True))
CREATE_ONE = Call(
    run=Part("", NEW_RUN, scalar=True),
    version=Part("", [Column("version", "TEXT"), Column("pinned", "BOOLEAN")], scalar=True, optional=True),
)
CREATE = Call(
    runs=Part("", (*NEW_RUN, *NEW_RUN_RARE), alias="a"),
    start_events=Part("start_event", START_EVENT),
    terms=Part("term", TERM),
)
PLANS_AND_UNITS = Call(
    facts=Part("f", (_of("run_ord"), *FACT)),
    units=Part("u", (_of("run_ord"), *UNIT, Column("taken", "BOOLEAN"))),
)
OPERATIONS = Call(
    operations=Part(
        "",
        (
            *_columns("TEXT", "kind workflow instance_id type"),
            Column("payload", "BYTEA"),
            Column("sender", "BYTEA", text=True),
            Column("dedup", "BYTEA"),
            Column("ask", "BYTEA", text=True),
            *_columns("BIGINT", "token number"),
            Column("note", "BYTEA", text=True),
            Column("ok", "BOOLEAN"),
            Column("trace", "TEXT"),
        ),
        alias="a",
    )
)
FOLLOWING = Call(
    facts=Part("f", (column for column in FACT if column.name not in ("ok", "value"))),
    attributes=Part("", _columns("BYTEA", "memo search"), scalar=True),
    terms=Part("term", TERM),
    end=Part(
        "",
        (
            *END,
            Column("next", "BOOLEAN"),
            Column("params", "BYTEA"),
            *_columns("BIGINT", "run_at attempt expires_ms"),
            Column("expiry", "TEXT"),
            Column("continues", "BOOLEAN"),
            Column("options", "BYTEA"),
            Column("token", "BIGINT"),
        ),
        scalar=True,
    ),
    units=Part(
        "",
        (Column("unit", "BIGINT"), Column("unit_key", "BYTEA", text=True), Column("unit_missing", "BIGINT")),
        alias="u",
    ),
)
_PERMIT = (*TASK, Column("step", "BYTEA", text=True), Column("attempt", "BIGINT"))
EXCHANGE = Call(
    returns=Part("x", _PERMIT),
    requests=Part(
        "q",
        (
            *_PERMIT,
            Column("limits", "TEXT"),
            Column("priority", "BIGINT"),
            *_columns("BOOLEAN", "until_end park"),
        ),
    ),
)
PLAIN = Call(facts=Part("f", FACT), logs=Part("l", LOG))
"""Facts and log lines without the position of a commit or advance."""
CALLS = {
    "commit": COMMIT,
    "commit_one": COMMIT_ONE,
    "advance": ADVANCE,
    "send": SEND,
    "send_one": SEND_ONE,
    "send_predicted": SEND_PREDICTED,
    "create": CREATE,
    "create_one": CREATE_ONE,
    "plans_and_units": PLANS_AND_UNITS,
    "operations": OPERATIONS,
    "following": FOLLOWING,
    "exchange": EXCHANGE,
    "plain": PLAIN,
}
RECORDS = {"fact": FACT, "log": LOG, "new_run": Record(*NEW_RUN, *NEW_RUN_OPTIONS)}
