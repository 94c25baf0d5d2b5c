"""Decoding by annotations: values are read back as their types, and errors name the field."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from inspect import Parameter
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Never,
    NoReturn,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, StringConstraints

from holdfast.core.codec import decoder, encode, plain
from holdfast.errors import DefinitionError, ParamsInvalidError

LONE = "a\ud800\0b"
T = TypeVar("T")


def roundtripped(value: Any, annotation: Any) -> Any:
    """Encode a value and decode it by the annotation. The exact decoder must return the same value."""
    encoded = plain(encode(value, what="value"))
    decoded, exact = decoder(annotation)(encoded), decoder(annotation, exact=True)(encoded)
    assert (exact, type(exact)) == (decoded, type(decoded))
    return decoded


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Rank(Enum):
    LOW = 1
    HIGH = 2


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    HELLO = "hello"


class Corner(Enum):
    ORIGIN = (0, 0)
    BIRTHDAY = date(2024, 2, 29)


class Point(NamedTuple):
    x: int
    label: str = ""


class Address(TypedDict):
    street: str
    raw: bytes
    floor: NotRequired[int]


@dataclass(frozen=True, slots=True)
class Order:
    id: str
    total: Decimal
    raw: bytes = b""
    at: datetime | None = None
    colours: list[Colour] = field(default_factory=list)
    address: Address | None = None


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)
    blob: bytes = b""


@dataclass
class Box(Generic[T]):
    content: T


class Item(BaseModel):
    name: str
    raw: bytes
    node: Node | None = None


class Cart(BaseModel):
    items: list[Item]
    parent: Cart | None = None


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime
    id: UUID
    raw: bytes
    pair: tuple[int, int]


class Trimmed(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, str_max_length=10)

    text: str


class Numbers(RootModel[list[int]]):
    pass


MOMENT = datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)
ORDER = Order("o-1", Decimal("1.10"), b"\0\xff", MOMENT, [Colour.RED], {"street": LONE, "raw": b"\xfe"})

TYPED: list[tuple[Any, Any]] = [
    (ORDER, Order),
    ([ORDER], list[Order]),
    ({"a": ORDER}, dict[str, Order]),
    (ORDER, Order | None),
    (None, Order | None),
    (None, None),
    (None, Optional[int]),  # noqa: UP045  (users write it)
    (Node("a", [Node("b", [], b"\xff")]), Node),
    (Box(b"\xff"), Box[bytes]),
    (Item(name=LONE, raw=b"\xff", node=Node("n", [], b"\xfe")), Item),
    (Cart(items=[Item(name="a", raw=b"\xff")], parent=Cart(items=[])), Cart),
    (Strict(at=MOMENT, id=UUID(int=5), raw=b"\xff", pair=(1, 2)), Strict),
    (Numbers([1, 2]), Numbers),
    ({"street": "a", "raw": b"\xff"}, Address),
    ({"street": "a", "raw": b"\xff", "floor": 3}, Address),
    (Point(1, "a"), Point),
    ([Point(1)], list[Point]),
    (Colour.BLUE, Colour),
    (Rank.HIGH, Rank),
    (Level.LOW, Level),
    (Word.HELLO, Word),
    (Corner.ORIGIN, Corner),
    (Corner.BIRTHDAY, Corner),
    ({Rank.HIGH: 1}, dict[Rank, int]),
    ({Rank.HIGH: [Rank.LOW]}, dict[Rank, list[Rank]]),
    ({Level.LOW: 1, Level.LOW: 2}, dict[Level, int]),
    ({Corner.BIRTHDAY: 1}, dict[Corner, int]),
    ({1: "a", 2: "b"}, dict[int, str]),
    ({True: 1}, dict[bool, int]),
    ({1.5: 1}, dict[float, int]),
    ({UUID(int=1): 1}, dict[UUID, int]),
    ({date(2024, 1, 2): 1}, dict[date, int]),
    (MOMENT, datetime),
    (MOMENT.astimezone(timezone(timedelta(hours=-3, minutes=-30))), datetime),
    (date(1, 1, 1), date),
    (time(1, 2, 3, 4), time),
    (timedelta(days=-1, microseconds=1), timedelta),
    (UUID(int=1), UUID),
    (Decimal("1E+400"), Decimal),
    (b"\0\xff", bytes),
    ([b"\xff"], list[bytes]),
    ((b"\xff", 1), tuple[bytes, int]),
    ((1, 2, 3), tuple[int, ...]),
    (Path("/tmp/a"), Path),
    (1.0, float),
    ("a", Literal["a", "b"]),
    (1, Literal["a", 1]),
    (1, int | str),
    ("1", int | str),
    (MOMENT, Union[int, datetime]),  # noqa: UP007
    ([1, "a", None], list[int | str | None]),
    ({"a": [1]}, Mapping[str, Sequence[int]]),
    ("ab", Annotated[str, Field(max_length=3)]),
    ({"any": [1, {"thing": None}]}, Any),
    ({"any": [1]}, object),
    ({"any": [1]}, dict),
    ([1, "a"], list),
]


@pytest.mark.parametrize(("value", "annotation"), TYPED)
def test_a_typed_value_is_read_back_as_its_type(value: Any, annotation: Any) -> None:
    decoded = roundtripped(value, annotation)
    assert decoded == value
    assert type(decoded) is type(value)


def test_a_set_is_decoded_from_a_list() -> None:
    assert decoder(set[int])([1, 2, 2]) == {1, 2}
    assert decoder(frozenset[str])(["a"]) == frozenset({"a"})


def test_a_value_without_annotation_is_returned_unchanged() -> None:
    value = {"a": [1]}
    assert decoder(Parameter.empty)(value) is value
    assert decoder(Any)(value) is value
    assert decoder(NoReturn)(None) is decoder(Never)(None) is None  # return types of steps that always raise
    assert decoder(dict)(value) is value


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (LONE, str),
        (Box(LONE), Box[str]),
        ({LONE: LONE}, dict[str, str]),
        (Item(name=LONE, raw=b""), Item),
        ({"street": LONE, "raw": b""}, Address),
        (Point(1, LONE), Point),
        ([LONE], list[str | None]),
        (LONE, Annotated[str, Field(min_length=1, max_length=4)]),
        (LONE, Annotated[str, StringConstraints(pattern="^a.*b$", to_lower=True)]),
        ("\U0010f000\ud800", Annotated[str, Field(max_length=2)]),
        (LONE, Literal["x"] | str),
        (LONE, Colour | str),
    ],
)
def test_text_with_lone_surrogates_is_read_back_unchanged(value: Any, annotation: Any) -> None:
    assert roundtripped(value, annotation) == value


def test_constraints_apply_to_text_with_lone_surrogates() -> None:
    assert decoder(Trimmed)({"text": f" {LONE} "}).text == LONE
    with pytest.raises(ParamsInvalidError) as caught:
        decoder(Annotated[str, Field(max_length=3)])(LONE)
    assert caught.value.issues[0]["type"] == "string_too_long"


@pytest.mark.parametrize(
    ("value", "annotation", "path", "type"),
    [
        ({"id": "o-1"}, Order, ["total"], "missing"),
        ({"id": 5, "total": "1"}, Order, ["id"], "string_type"),
        ({"id": "a", "total": "1", "raw": "%"}, Order, ["raw"], "value_error"),
        ([1, "x"], list[int], [1], "int_parsing"),
        ("x", int, [], "int_parsing"),
        (5, str, [], "string_type"),
        (0, None, [], "none_required"),
        ([], dict, [], "dict_type"),
        ("green", Colour, [], "enum"),
        (LONE, Colour, [], "string_unicode"),
        (LONE, Literal["a"], [], "string_unicode"),
        (
            {"at": "x", "id": str(UUID(int=1)), "raw": "", "pair": [1, 2]},
            Strict,
            ["at"],
            "datetime_parsing",
        ),
    ],
)
def test_the_error_for_a_mismatch_names_the_field(value: Any, annotation: Any, path: list[Any], type: str) -> None:
    with pytest.raises(ParamsInvalidError, match="does not fit") as caught:
        decoder(annotation)(value)
    issue = caught.value.issues[0]
    assert (issue["path"], set(issue)) == (path, {"path", "message", "type"})
    assert issue["type"] == type


def test_an_annotation_that_cannot_be_decoded_is_refused_at_definition() -> None:
    class Socket:
        pass

    @dataclass
    class Unfinished:
        later: Missing  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match="Socket cannot be read back from JSON"):
        decoder(Socket)
    with pytest.raises(DefinitionError, match="Unfinished cannot be read back from JSON"):
        decoder(Unfinished)
    with pytest.raises(DefinitionError):
        decoder(list["Missing"])  # type: ignore[name-defined]  # noqa: F821


def test_an_unhashable_annotation_is_accepted() -> None:
    assert decoder(Annotated[int, {"unit": "cents"}])(5) == 5


def test_unions_that_differ_in_order_have_different_decoders() -> None:
    # The two annotations compare equal, but the first member that fits decides.
    first = decoder(Annotated[Union[float, int], Field(union_mode="left_to_right")])  # noqa: UP007
    second = decoder(Annotated[Union[int, float], Field(union_mode="left_to_right")])  # noqa: UP007
    assert type(first(1)) is float
    assert type(second(1)) is int


def test_one_annotation_has_one_decoder() -> None:
    assert decoder(Order) is decoder(Order)


def test_user_data_in_a_schema_is_not_adapted() -> None:
    class Tricky(BaseModel):
        data: dict[str, Any] = {"type": "bytes"}
        kind: Literal["bytes", "str"] = "bytes"

    assert decoder(Tricky)({}).data == {"type": "bytes"}
    assert decoder(Tricky)({"kind": "str"}).kind == "str"


def test_a_field_may_have_the_name_of_a_schema_key() -> None:
    class Named(BaseModel):
        metadata: bytes
        default: bytes
        type: bytes
        members: list[bytes]

    named = Named(metadata=b"\xff", default=b"\xfe", type=b"\xfd", members=[b"\xfc"])

    assert roundtripped(named, Named) == named


def test_decoding_restores_the_patched_pydantic_flag() -> None:
    from pydantic._internal import _generate_schema

    decoder(Address)
    assert _generate_schema._SUPPORTS_TYPEDDICT is (sys.version_info >= (3, 12))


text = st.text(max_size=8)
moments = st.datetimes() | st.datetimes(timezones=st.just(UTC))
orders = st.builds(
    Order,
    text,
    st.decimals(allow_nan=False, allow_infinity=False),
    st.binary(max_size=8),
    st.none() | moments,
    st.lists(st.sampled_from(Colour), max_size=3),
)


@given(orders)
def test_any_order_is_read_back_unchanged(order: Order) -> None:
    assert roundtripped(order, Order) == order


@given(st.timedeltas())
def test_any_timedelta_is_read_back_unchanged(value: timedelta) -> None:
    assert roundtripped(value, timedelta) == value


@given(st.dates(), st.times(), moments, st.uuids())
def test_any_date_time_and_uuid_are_read_back_unchanged(day: date, clock: time, moment: datetime, id: UUID) -> None:
    value = (day, clock, moment, id)
    assert roundtripped(value, tuple[date, time, datetime, UUID]) == value


@given(st.binary() | st.lists(st.binary()))
def test_any_bytes_are_read_back_unchanged(value: Any) -> None:
    assert roundtripped(value, bytes if isinstance(value, bytes) else list[bytes]) == value
