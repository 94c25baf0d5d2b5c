"""Columns and constants that SQL shares with Python have one definition: signatures, types and tables follow it."""

from __future__ import annotations

import re
from enum import Enum
from importlib.resources import files
from typing import NamedTuple

import asyncpg
import pytest

from holdfast.core.facts import Delivery, Fact, Log
from holdfast.store.postgres import PostgresStore, columns, constants, sql_template
from holdfast.store.postgres.columns import CALLS, Call, Column, Part, Record
from holdfast.store.postgres.sql import functions
from holdfast.store.protocol import NewUnit, Outbound, TaskRef

FUNCTIONS = {
    "holdfast_commit": "commit",
    "holdfast_commit_one": "commit_one",
    "holdfast_advance": "advance",
    "holdfast_send": "send",
    "holdfast_send_one": "send_one",
    "holdfast_send_predicted": "send_predicted",
    "holdfast_build_new_runs": "create",
    "holdfast_create_one": "create_one",
    "holdfast_build_plans_and_units": "plans_and_units",
    "holdfast_build_operations": "operations",
    "holdfast_apply_following": "following",
}
"""Functions that the store calls with the parts of a call."""
SIGNATURE = """
    SELECT array_agg(a.name || ' ' || format_type(a.type, NULL) ORDER BY a.ord)
      FROM pg_proc AS p
     CROSS JOIN unnest(p.proargnames[1:p.pronargs], p.proargtypes::oid[]) WITH ORDINALITY AS a (name, type, ord)
     WHERE p.pronamespace = 'holdfast'::regnamespace AND p.proname = $1
     GROUP BY p.oid
"""
ATTRIBUTES = """
    SELECT array_agg(attname || ' ' || format_type(atttypid, NULL) ORDER BY attnum) FROM pg_attribute
     WHERE attrelid = ('holdfast.' || $1)::regclass AND attnum > 0
"""
JSON_MEMBERS = {"'ended'", "'message'", "'version'"}
"""Names of JSON members that are also constants of other kinds."""
NUMBERS_OF_CONSTANTS = re.compile(
    r"(?:\b|_)(?:(?:state|bucket|verdict|next)(?:\[[^\]]*\])?\s*(?:=|<>|[<>]=?|IN\s*\()\s*\d"
    r"|(?:signal|watch|kind)(?:\[[^\]]*\])?\s*(?:=|<>|&|\||IN\s*\()\s*~?[1-9])"
)
"""Comparisons with a number where a constant belongs. 0 is no flag of a signal or watch."""


def parameters(call: Call) -> list[str]:
    """The parameters of the call as PostgreSQL displays them."""
    return [
        f"{name} {type_.lower()}"
        for part in call.parts.values()
        for name, type_ in zip(part.parameter_names, part.types, strict=True)
    ]


def attributes(record: Record, prefix: str = "", *, array: bool = False) -> list[str]:
    return [f"{prefix}{name} {type_.lower()}{'[]' if array else ''}" for name, type_, _ in record]


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_the_signature_of_an_installed_function_has_the_columns_of_its_call(
    store: PostgresStore, other: asyncpg.Connection, function: str
) -> None:
    expected = parameters(CALLS[FUNCTIONS[function]])

    [[signature]] = await other.fetch(SIGNATURE, function)

    assert _contains(signature, expected), (signature, expected)


async def test_a_changed_table_of_columns_is_noticed(
    store: PostgresStore, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = Part("f", (Column("commit", "INTEGER"), Column("another", "TEXT")))
    monkeypatch.setitem(columns.COMMIT.parts, "facts", facts)

    [[signature]] = await other.fetch(SIGNATURE, "holdfast_commit")

    assert not _contains(signature, parameters(CALLS["commit"]))
    monkeypatch.undo()
    assert _contains(signature, parameters(CALLS["commit"]))


async def test_composite_types_have_the_columns_that_calls_pass(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    """Migrations create the types and do not change, so they cannot use the table of columns."""
    new_run = await other.fetchval(ATTRIBUTES, "holdfast_new_run")
    operation = await other.fetchval(ATTRIBUTES, "holdfast_operation")
    plans_and_units = await other.fetchval(ATTRIBUTES, "holdfast_plans_and_units")

    assert _contains(new_run, [*attributes(columns.NEW_RUN), *attributes(columns.NEW_RUN_OPTIONS)])
    assert operation == attributes(columns.OPERATIONS.parts["operations"])
    parts = columns.PLANS_AND_UNITS.parts
    assert plans_and_units == [
        *attributes(parts["facts"], "f_", array=True),
        *attributes(parts["units"], "u_", array=True),
    ]


async def test_the_tables_of_facts_and_logs_have_the_columns_of_the_records(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    facts = [text.replace("smallint", "integer") for text in await other.fetchval(ATTRIBUTES, "holdfast_fact")]

    assert _contains(facts, attributes(columns.FACT))
    assert _contains(await other.fetchval(ATTRIBUTES, "holdfast_log"), attributes(columns.LOG))


@pytest.mark.parametrize(
    ("record", "type_"),
    [
        (columns.FACT, Fact),
        (columns.LOG, Log),
        (columns.DELIVERY, Delivery),
        (columns.OUTBOUND, Outbound),
        (columns.UNIT, NewUnit),
        (columns.TASK, TaskRef),
    ],
)
def test_a_record_has_a_column_for_each_field(record: Record, type_: type[NamedTuple]) -> None:
    """The names are those of the fields, except that the key of a step is called key in SQL."""
    assert record.names == [field if type_ is Log else field.removeprefix("step_") for field in type_._fields]


def test_free_text_survives_a_record() -> None:
    fact = Fact(0, "key \ud800", 0, "do", 1, 1, name="\0")

    assert Fact(*columns.FACT.decode(columns.FACT.encode(fact))) == fact


def sql_texts() -> dict[str, str]:
    """The ``.sql`` files with placeholders and without comments, by name."""
    package = files("holdfast.store.postgres")
    found = [(folder, file) for folder in ("functions", "sql") for file in package.joinpath(folder).iterdir()]
    return {f"{folder}/{file.name}": re.sub(r"--.*", "", file.read_text("utf-8")) for folder, file in found}


@pytest.mark.parametrize("file", sql_texts())
def test_sql_names_constants_and_does_not_repeat_their_values(file: str) -> None:
    text = sql_texts()[file]
    values = set(constants.sql_literals().values()) - JSON_MEMBERS

    assert [literal for literal in re.findall(r"'[^']*'", text) if literal in values] == []
    assert NUMBERS_OF_CONSTANTS.findall(text) == []


@pytest.mark.parametrize(
    "typed", ["status = 'paused'", "f.state = 1", "t.signal & 2 <> 0", "kind = 3", "next IN (1, 2)", "v_verdict[1] > 0"]
)
def test_a_value_that_is_typed_again_is_noticed(typed: str) -> None:
    repeated = set(re.findall(r"'[^']*'", typed)) & set(constants.sql_literals().values())

    assert repeated or NUMBERS_OF_CONSTANTS.search(typed)


@pytest.mark.parametrize("enum", constants.ENUMS)
def test_a_placeholder_of_an_enum_stands_for_the_value(enum: type[Enum]) -> None:
    for member in enum:
        value = sql_template.expand(f"{{{enum.__name__}.{member.name}}}")
        assert value == (f"'{member.value}'" if isinstance(member.value, str) else str(member.value))


@pytest.mark.parametrize("unknown", ["{Status.NONE}", "{commit.nothing.rows}", "{commit.facts.nothing}", "{nothing}"])
def test_an_unknown_placeholder_is_an_error(unknown: str) -> None:
    with pytest.raises(KeyError):
        sql_template.expand(unknown)


def test_the_numbers_of_arguments_follow_those_that_are_written_out() -> None:
    assert sql_template.expand("f($1, {plain.logs.arguments}, $2)").startswith("f($1, $3, $4, $5, ")


def test_the_digest_of_the_functions_covers_columns_and_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {functions.__wrapped__("holdfast").digest}
    with monkeypatch.context() as changed:
        changed.setitem(sql_template._LITERALS, "Status.PAUSED", "'halted'")
        digests.add(functions.__wrapped__("holdfast").digest)
    with monkeypatch.context() as changed:
        changed.setitem(columns.ADVANCE.parts, "new_units", Part("u", (Column("advance", "INTEGER"),)))
        digests.add(functions.__wrapped__("holdfast").digest)

    assert len(digests) == 3
    assert functions.__wrapped__("one").digest == functions.__wrapped__("two").digest


async def test_the_database_has_one_function_of_each_name(store: PostgresStore, other: asyncpg.Connection) -> None:
    """Two functions of one name would make calls of the previous release ambiguous."""
    overloaded = await other.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace GROUP BY 1 HAVING count(*) > 1"
    )

    assert overloaded == []


def _contains(listed: list[str], part: list[str]) -> bool:
    """True if ``listed`` has the entries of ``part`` in their order, without others between them."""
    return any(listed[n : n + len(part)] == part for n in range(len(listed) - len(part) + 1))
