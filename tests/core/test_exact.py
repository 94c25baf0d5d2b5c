"""Exact decoding accepts only the JSON form of a type."""

from __future__ import annotations

import time as time_
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypeAliasType

from holdfast.core.codec import decoder
from holdfast.errors import ParamsInvalidError

T = TypeVar("T")


class Level(IntEnum):
    LOW = 1


class Colour(Enum):
    RED = "red"

    @classmethod
    def _missing_(cls, value: object) -> Colour | None:
        return cls.RED if value == "rot" else None


class Ratio(Enum):
    WHOLE = 1.0
    PAIR = (1, 2)


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Order:
    total: int
    at: datetime | None = None


Id = TypeAliasType("Id", int)

REFUSED: list[tuple[Any, list[Any]]] = [
    (int, ["12", " 1 ", "1.0", True, False, 1.5, None, [], {}]),
    (float, ["1.5", "nan", "inf", True, 10**400]),
    (bool, [0, 1, 1.0, "true", "yes", "1"]),
    (Decimal, [" 1 ", "1\n", ".", "1e", "1_000", "nan", "Infinity", "", "\u0661", "1E-1000000000", True]),
    (datetime, [0, 1.5, "12", "2024-01-02", "1704164645", True]),
    (date, [0, "0", "2024-01-02T00:00:00", "2024-01-02\n"]),
    (time, [0, 43200.5, "10"]),
    (timedelta, [30, 1.5, "1 day", "10:00", True]),
    (Level, ["1", True, " 1 ", 2]),
    (Ratio, [True, "1", [1], [2, 1]]),
    (Literal[1], [True, "1"]),
    (Literal[True], [1, 1.0, "true"]),
    (Literal["a"], ["b", None]),
    (Point, [{"x": 1}, ["1"], "12"]),
    (list[int], [["1"], {"0": 1}, "12"]),
    (dict[str, int], [{"a": "1"}, {"a": True}]),
    (Order, [{"total": "12"}, {"total": 1, "at": 0}]),
    (Order | None, [{"total": "12"}, 0]),
    (tuple[Id, int], [["1", 1], [1, True]]),
]


@pytest.mark.parametrize(("annotation", "values"), REFUSED, ids=lambda case: str(case)[:40])
def test_a_value_of_another_json_type_is_refused_even_if_it_could_be_converted(
    annotation: Any, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(ParamsInvalidError):
            decoder(annotation, exact=True)(value)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 5.0, 5),  # the same number in JSON
        (float, 5, 5.0),
        (Decimal, 5, Decimal(5)),
        (Decimal, 1.5, Decimal("1.5")),
        (Decimal, "1E+400", Decimal("1E+400")),
        (Decimal, "1E-999999999", Decimal("1E-999999999")),
        (datetime, "2024-01-02 03:04", datetime(2024, 1, 2, 3, 4)),  # noqa: DTZ001
        (timedelta, "-P1DT2.5S", -timedelta(days=1, seconds=2.5)),
        (Level, 1.0, Level.LOW),
        (Ratio, 1, Ratio.WHOLE),
        (Ratio, [1, 2], Ratio.PAIR),
        (Literal[1], 1.0, 1),
        (Point, [1], Point(1)),
        (dict[int, int], {"1": 1}, {1: 1}),
        (dict[Id, bool], {"1": True}, {1: True}),
        (dict[Level, date], {"1": "2024-01-02"}, {Level.LOW: date(2024, 1, 2)}),
        (int | str, "12", "12"),
        (Order, {"total": 5.0, "at": None}, Order(5)),
    ],
)
def test_the_json_forms_of_a_type_are_accepted(annotation: Any, value: Any, expected: Any) -> None:
    decoded = decoder(annotation, exact=True)(value)

    assert (decoded, type(decoded)) == (expected, type(expected))


def test_a_mismatch_has_the_message_of_its_type() -> None:
    with pytest.raises(ParamsInvalidError, match=r"total: Input should be a valid integer$") as caught:
        decoder(Order, exact=True)({"total": "12"})

    assert caught.value.issues == [
        {"path": ["total"], "message": "Input should be a valid integer", "type": "int_type"}
    ]


def test_long_text_is_refused_quickly() -> None:
    began = time_.perf_counter()
    for text in ("1" * 1_000_000 + "x", "1." + "1" * 1_000_000 + "x", "." * 1_000_000, "1e" + "1" * 1_000_000 + "x"):
        with pytest.raises(ParamsInvalidError):
            decoder(Decimal, exact=True)(text)

    assert time_.perf_counter() - began < 5


# --- validators and strictness set by the user


def without_percent_sign(value: Any) -> Any:
    return str(int(value.removesuffix("%"))) if isinstance(value, str) else value


class Prepared(BaseModel):
    share: Annotated[int, BeforeValidator(without_percent_sign)]
    count: int
    many: int

    @field_validator("count", mode="before")
    @classmethod
    def from_word(cls, value: Any) -> Any:
        return {"one": "1"}.get(value, value)

    @model_validator(mode="before")
    @classmethod
    def with_default(cls, data: Any) -> Any:
        return {"many": "100", **data}


def test_the_return_value_of_a_user_validator_is_converted_leniently() -> None:
    decoded = decoder(Prepared, exact=True)({"share": "50%", "count": "one"})

    assert (decoded.share, decoded.count, decoded.many) == (50, 1, 100)


def test_a_lax_field_and_an_enum_with_custom_lookup_accept_more_forms() -> None:
    assert decoder(Annotated[int, Field(strict=False)], exact=True)("12") == 12
    assert decoder(Colour, exact=True)("rot") is Colour.RED


def test_a_strict_model_accepts_dates_as_text() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        at: datetime
        level: Level

    assert decoder(Strict, exact=True)({"at": "2024-01-02T03:04:05Z", "level": 1}).level is Level.LOW
    with pytest.raises(ParamsInvalidError):
        decoder(Strict, exact=True)({"at": "2024-01-02T03:04:05Z", "level": "1"})


def test_recorded_values_are_decoded_leniently() -> None:
    assert decoder(Order)({"total": "12"}) == Order(12)
