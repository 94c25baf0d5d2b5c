"""Encoding and decoding of plain values. Values that would not be read back unchanged are refused with their path."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, computed_field

from holdfast.core.codec import decoder, encode, plain, roundtrip
from holdfast.errors import DamagedRunError, NotSerializableError, PayloadTooLargeError

storable_text = st.text(st.characters(), max_size=20).filter(lambda text: _is_storable(text))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable_text
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(storable_text, inner, max_size=5),
    max_leaves=20,
)


def _is_storable(text: str) -> bool:
    pairs = pairwise(text)
    return not any("\ud800" <= a <= "\udbff" and "\udc00" <= b <= "\udfff" for a, b in pairs)


def roundtripped(value: Any) -> Any:
    return plain(encode(value, what="value"))


@given(json_values)
@example("\0")
@example("\ud800")
@example("\udc00\ud800")
@example({"\udfff": ["😀", "\ud83d"]})
@example(-0.0)
def test_plain_values_are_read_back_unchanged(value: Any) -> None:
    data = encode(value, what="value")
    assert repr(plain(data)) == repr(value)
    escaped = json.dumps(value).encode()  # the form in which older versions stored values
    assert escaped.isascii()
    assert repr(plain(escaped)) == repr(value)


def test_encoding_keeps_the_order_of_keys_and_does_not_escape_text() -> None:
    assert encode({"b": 1, "a": [True, None, "ü"]}, what="value") == '{"b":1,"a":[true,null,"ü"]}'.encode()
    assert encode(None, what="value") == b"null"
    assert plain(None) is None


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("я", "я"),
        ("😀", "😀"),
        ("\0", r"\u0000"),
        ("\x1f", r"\u001f"),
        ("я\ud800я", r"я\ud800я"),
        ("\udfff", r"\udfff"),
        ("\ud83d\\ude00", r"\ud83d\\ude00"),
    ],
)
def test_only_control_characters_and_lone_surrogates_are_escaped(text: str, escaped: str) -> None:
    for value, expected in ((text, f'"{escaped}"'), ([text], f'["{escaped}"]'), ({text: 1}, f'{{"{escaped}":1}}')):
        data = encode(value, what="value")
        assert data == expected.encode()
        assert plain(data) == value


def test_sizes_are_counted_in_bytes_of_utf8() -> None:
    assert len(encode("я" * 10, what="value", limit=22)) == 22
    with pytest.raises(PayloadTooLargeError, match="takes 22 bytes as JSON; at most 21 are allowed"):
        encode("я" * 10, what="value", limit=21)


def test_the_longest_int_is_read_back_unchanged() -> None:
    value = 10**4300 - 1
    assert roundtripped([value, -value]) == [value, -value]


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Inner:
    when: datetime
    made: int = field(init=False, default=3)


class Model(BaseModel):
    inner: Inner
    camel_case: int = Field(alias="camelCase")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def doubled(self) -> int:
        return self.camel_case * 2


MOMENT = datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ((1, (2,)), [1, [2]]),
        (OrderedDict(a=1), {"a": 1}),
        (Colour.RED, "red"),
        (Size.SMALL, 1),
        (Point(1, 2), [1, 2]),
        (MOMENT, "2024-02-29T12:30:01.000005+00:00"),
        (date(2024, 2, 29), "2024-02-29"),
        (time(1, 2, 3), "01:02:03"),
        (timedelta(days=1, seconds=2, microseconds=3), "P1DT2.000003S"),
        (timedelta(microseconds=-1), "-P0DT0.000001S"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.10"), "1.10"),
        (b"\0\xff", "AP8="),
        (bytearray(b"a"), "YQ=="),
        (Path("/tmp/a"), "/tmp/a"),
        (Inner(MOMENT), {"when": "2024-02-29T12:30:01.000005+00:00"}),
        (
            Model(inner=Inner(MOMENT), camelCase=2),
            {"inner": {"when": "2024-02-29T12:30:01.000005+00:00", "made": 3}, "camelCase": 2},
        ),
    ],
)
def test_known_types_have_a_json_form(value: Any, form: Any) -> None:
    assert roundtripped(value) == form
    assert roundtripped({"nested": [value]}) == {"nested": [form]}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (1, "1"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "null"),
        (Colour.RED, "red"),
        (Size.SMALL, "1"),
        (UUID(int=1), str(UUID(int=1))),
        (date(2024, 1, 2), "2024-01-02"),
        (MOMENT, MOMENT.isoformat()),
    ],
)
def test_dict_keys_are_converted_to_text(key: Any, text: str) -> None:
    assert roundtripped([{key: 1, "other": 2}]) == [{text: 1, "other": 2}]


@dataclass
class Tagged:
    tags: Any


class WithSecret(BaseModel):
    secret: SecretStr
    tags: set[int] = set()


def self_containing_list() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


REFUSED: list[Any] = [
    ({"items": [0, 1, 2, {"tags": {1}}]}, r"^params\.items\[3\]\.tags is of type set"),
    (frozenset(), "^params is of type frozenset"),
    ((char for char in "ab"), "^params is of type generator"),
    ([object()], r"^params\[0\] is of type object"),
    (Tagged, "^params is of type type"),
    (1j, "^params is of type complex"),
    ({"a": math.nan}, r"^params\.a is nan.*float"),
    ([math.inf], r"^params\[0\] is inf"),
    (-math.inf, "^params is -inf"),
    (Decimal("NaN"), r"^params of type decimal\.Decimal.*finite"),
    (self_containing_list(), r"^params\[0\]\.again contains itself"),
    (nested(201), "nested deeper than 200"),
    pytest.param(nested(100_000), "nested deeper than 200", id="very deep"),
    pytest.param(10**4300, "^params is an int of more than 4300 digits", id="long int"),
    ({"a b": {(1, 2): 3}}, r"^params\['a b'\] has a key of type tuple"),
    ({b"a": 1}, "has a key of type bytes"),
    ({math.nan: 1}, "has a key of type float"),
    ({1: "a", "1": "b"}, "two keys that both become '1'"),
    ([{"x": {None: 1, "null": 2}}], r"^params\[0\]\.x has two keys"),
    (Tagged({1: 1, "1": 2}), r"^params\.tags has two keys"),
    (Tagged([{1}]), r"^params\.tags\[0\] is of type set"),
    (WithSecret(secret=SecretStr("hush")), r"^params\.secret is of type pydantic\.types\.SecretStr"),
    ("\ud83d\ude00", "^params is text with two surrogates"),
    ({"\ud83d\ude00": 1}, "is text with two surrogates"),
    ([Tagged("\ud83d\ude00")], r"^params\[0\]\.tags is text with two surrogates"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED)
def test_the_error_for_an_unserializable_value_has_its_path_and_type(value: Any, message: str) -> None:
    with pytest.raises(NotSerializableError, match=message) as caught:
        encode(value, what="params")
    assert "hush" not in str(caught.value)


def test_the_error_of_a_raising_serializer_has_the_path_and_the_cause() -> None:
    class Bad(Enum):
        @property
        def value(self) -> Any:
            raise RuntimeError("boom")

        A = 1

    with pytest.raises(NotSerializableError, match=r"^result\[0\] of type .*Bad could not be converted: boom"):
        encode([Bad.A], what="result")


def test_two_hundred_levels_are_accepted_and_brackets_in_text_are_not_counted() -> None:
    assert roundtripped(nested(200)) == nested(200)
    assert roundtripped(["[{" * 500, '"[\\' * 500]) == ["[{" * 500, '"[\\' * 500]
    assert roundtripped([[] for _ in range(500)]) == [[] for _ in range(500)]


def test_a_shared_object_is_not_a_cycle() -> None:
    shared = {1: [1]}
    assert roundtripped([shared, shared]) == [{"1": [1]}] * 2


def test_the_error_for_a_large_value_has_its_size_and_the_limit() -> None:
    assert encode("x" * 8, what="params", limit=10) == b'"xxxxxxxx"'
    with pytest.raises(PayloadTooLargeError, match=r"params takes 11 bytes.*at most 10"):
        encode("x" * 9, what="params", limit=10)


def test_nan_in_stored_json_is_refused() -> None:
    with pytest.raises(DamagedRunError, match="NaN is not JSON"):
        plain(b"[NaN]")


@given(json_values)
def test_a_live_result_is_equal_to_the_replayed_one(value: Any) -> None:
    encoded = encode(value, what="result")
    live = roundtrip(value, encoded, decoder(Any))
    assert repr(live) == repr(plain(encoded))


def test_a_live_result_has_the_annotated_type() -> None:
    assert type(roundtrip(1, b"1", decoder(float))) is float
    assert roundtrip("red", b'"red"', decoder(Colour)) is Colour.RED
    assert roundtrip((1, 2), b"[1,2]", decoder(Any)) == [1, 2]


def test_importing_the_codec_does_not_import_pydantic() -> None:
    code = "import sys, holdfast.core.codec, holdfast.core.retry; print('pydantic' in sys.modules)"
    source = str(Path(__file__).parents[2] / "src")
    out = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert json.loads(out.stdout.strip().lower()) is False
