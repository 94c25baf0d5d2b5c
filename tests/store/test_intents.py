"""The size of the store protocol: few intents, and docs/architecture.md lists all of them, and all queries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres import readers as postgres_readers
from holdfast.store.protocol import Query, Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite import readers as sqlite_readers

MOST = 32
_ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


def _public(store: type) -> set[str]:
    """The names of the public methods and properties of a class, with inherited ones."""
    return {name for name in dir(store) if not name.startswith("_")}


def _documented() -> tuple[int, list[str]]:
    """The number of intents in docs/architecture.md, and the names in the table after it."""
    found = re.search(r"`Store` has (\d+) intents:\n\n(.*?)\n\n", _ARCHITECTURE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return int(found[1]), re.findall(r"`(\w+)`", found[2])


def test_the_store_has_at_most_32_intents() -> None:
    assert len(_public(Store)) <= MOST


def test_the_architecture_page_states_the_number_of_intents_and_names_each_once() -> None:
    number, names = _documented()

    assert number == len(names) == len(_public(Store))
    assert set(names) == _public(Store)


@pytest.mark.parametrize("store", [SqliteStore, PostgresStore])
def test_a_store_has_no_public_members_besides_the_intents(store: type) -> None:
    assert _public(store) == _public(Store)


def _queries() -> set[str]:
    return {query.__name__ for query in Query.__subclasses__()}


@pytest.mark.parametrize("readers", [sqlite_readers.READERS, postgres_readers.READERS])
def test_a_store_answers_every_query(readers: dict[type, object]) -> None:
    assert {query.__name__ for query in readers} == _queries()


def test_the_architecture_page_names_every_query_once() -> None:
    found = re.search(r"`read` takes (\d+) queries:\n\n(.*?)\n\n", _ARCHITECTURE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    names = re.findall(r"`(\w+)`", found[2])

    assert int(found[1]) == len(names)
    assert set(names) == _queries()
