"""Lists by search attributes: the meaning of query values, and the instances found."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any

import pytest
from http_api import Api

from holdfast.http.queries import MAX_SEARCH_FILTERS
from holdfast.testing import Harness

EVERY_STORE = True

RUNS: dict[str, Any] = {
    "int": 5,
    "float": 5.5,
    "negative": -3,
    "yes": True,
    "no": False,
    "five": "5",
    "true": "true",
    "less": "<5",
    "quoted": '"5"',
    "empty": "",
    "signs": "a+b c&d=é",
    "odd": "a\0\ud800",
    "list": ["red", "blue"],
    "date": "2030-05-01T12:00:00.000Z",
    "zeros": "007",
}
"""Runs by their attribute ``n``, the oldest first."""

EQUAL = {
    "5": ["int"],
    "5.0": ["int"],
    "0.5e1": ["int"],
    "5.5": ["float"],
    "-3": ["negative"],
    "true": ["yes"],
    "1": ["yes"],  # booleans compare as 0 and 1
    "false": ["no"],
    "-0": ["no"],
    '"5"': ["five"],
    '"true"': ["true"],
    '"<5"': ["less"],
    '"\\"5\\""': ["quoted"],
    "": ["empty"],
    '""': ["empty"],
    "a+b c&d=é": ["signs"],
    '"a\\u0000\\ud800"': ["odd"],
    "red": ["list"],
    "blue": ["list"],
    "2030-05-01T12:00:00.000Z": ["date"],
    "007": ["zeros"],
}
NOTHING = ["green", '"5', "True", "null", "[5]", " 5", "+5", ".5", "5.", "\u0665", "NaN", "=5", "9" * 15]


@pytest.fixture
async def runs(h: Harness, virtual: Api) -> Api:
    entries = [{"id": name, "params": {"n": value}} for name, value in RUNS.items()]
    content = json.dumps({"instances": entries})  # httpx cannot encode lone surrogates
    assert (await virtual.send("POST", "/tagged/instances/batch", content=content)).status_code == 200
    await h.run_until_idle()
    return virtual


async def tag(h: Harness, api: Api, **runs: dict[str, Any]) -> None:
    for name, attributes in runs.items():
        await api.create("tagged", attributes, id=name)
    await h.run_until_idle()


async def find(api: Api, **search: str) -> list[str]:
    query = {f"search.{key}": value for key, value in search.items()}
    return [instance["id"] for instance in (await api.get("/tagged/instances", pageSize=100, **query))["instances"]]


# --- values


async def test_a_query_value_is_compared_according_to_its_form(runs: Api) -> None:
    assert {value: await find(runs, n=value) for value in EQUAL} == EQUAL


async def test_a_value_that_no_run_has_finds_nothing(runs: Api) -> None:
    assert {value: await find(runs, n=value) for value in NOTHING} == {value: [] for value in NOTHING}


COMPARE: dict[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


@pytest.mark.parametrize("op", COMPARE)
async def test_a_range_contains_only_numbers_or_only_texts(runs: Api, op: str) -> None:
    """Texts with lone surrogates are excluded: SQLite sorts them after all others."""
    bounds = {
        "5": 5,
        "-3.5": -3.5,
        "1e300": 1e300,
        "true": 1,
        '"5"': "5",
        "red": "red",
        " 5": " 5",
        "2030-05": "2030-05",
    }

    for text, bound in bounds.items():
        fitting = [
            name for name in reversed(RUNS) if name != "odd" and any(fits(op, value, bound) for value in values(name))
        ]
        assert [name for name in await find(runs, n=op + text) if name != "odd"] == fitting, text


async def test_an_attribute_can_be_given_several_times(h: Harness, virtual: Api) -> None:
    await tag(h, virtual, **{f"n{n}": {"n": n} for n in range(6)})

    listed = await virtual.get("/tagged/instances?search.n=>=2&search.n=<5")

    assert [instance["id"] for instance in listed["instances"]] == ["n4", "n3", "n2"]


async def test_a_large_number_is_equal_in_every_notation(h: Harness, virtual: Api) -> None:
    await tag(h, virtual, a={"n": 1e20}, b={"n": -1e17}, c={"n": 2**53}, d={"n": 1e300})

    for same in (
        {"1e20": ["a"], "1" + "0" * 20: ["a"], "1" + "0" * 20 + ".0": ["a"]},
        {"-1e17": ["b"], "-1" + "0" * 17: ["b"]},
        {
            "9007199254740992": ["c"],
            "9007199254740992.0": ["c"],
            "9007199254740993": ["c"],
            "9007199254740993e0": ["c"],
        },
        {">1e19": ["d", "a"], ">1" + "0" * 19: ["d", "a"], "<=-9" + "9" * 15: ["b"]},
    ):
        assert {value: await find(virtual, n=value) for value in same} == same


def values(name: str) -> list[Any]:
    value = RUNS[name]
    return value if isinstance(value, list) else [value]


def fits(op: str, value: Any, bound: Any) -> bool:
    return isinstance(value, str) == isinstance(bound, str) and COMPARE[op](value, bound)


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "query",
    [
        "search.=1", "search.9=1", "search.-a=1", "search.a%20b=1", "search.%C3%A9=1", "search.a%00=1", "search.a%0A=1",
        "search." + "k" * 65 + "=1", "search.n=" + "x" * 1001, 'search.n="' + "x" * 1001 + '"', "search.n=" + "9" * 400,
        "search.n=>" + "9" * 5000, "search.n=1e400", "search.n=<-1e400",
        "search.a=1&search.9=1", "search.n[x]=1", "search.n[]=1",
        "&".join(f"search.k{n}=1" for n in range(MAX_SEARCH_FILTERS + 1)),
    ],
    ids=lambda query: query[:25],
)  # fmt: skip
async def test_an_invalid_search_is_refused(virtual: Api, query: str) -> None:
    response = await virtual.send("GET", f"/tagged/instances?{query}")

    assert (response.status_code, response.json()["code"]) == (400, "VALIDATION_ERROR")
    [issue] = response.json()["issues"]
    assert issue["path"][0] == "query"
    assert issue["path"][1].startswith("search")


async def test_the_longest_names_and_values_can_be_searched_for(h: Harness, virtual: Api) -> None:
    key, text = "k" * 64, "x" * 1000
    await tag(h, virtual, a={key: text, "big": 2**53, "a.b-c_d": 1, "_": 1})

    for name, value in [(key, text), (key, f'"{text}"'), (key, f">={text}"), ("big", str(2**53)), ("a.b-c_d", "1")]:
        assert await find(virtual, **{name: value}) == ["a"]
    assert await find(virtual, **{f"k{n}": "1" for n in range(MAX_SEARCH_FILTERS)}) == []


# --- several filters, pages, statuses


async def test_several_filters_must_all_hold(h: Harness, virtual: Api) -> None:
    await tag(
        h, virtual,
        a={"customer": "c-1", "total": 40, "tags": ["web", "eu"]},
        b={"customer": "c-1", "total": 250, "tags": ["web"]},
        c={"customer": "c-2", "total": 250, "tags": ["eu"]},
    )  # fmt: skip

    assert await find(virtual, customer="c-1") == ["b", "a"]
    assert await find(virtual, customer="c-1", total=">=100") == ["b"]
    assert await find(virtual, total=">=40", tags="eu") == ["c", "a"]
    assert await find(virtual, customer="c-1", total=">40", tags="eu") == []
    assert await find(virtual, customer="c-1", shop="x") == []


async def test_a_search_pages_by_cursor(h: Harness, virtual: Api) -> None:
    await tag(h, virtual, **{f"t{n}": {"even": n % 2 == 0, "n": n} for n in range(10)})

    for search in ({"search.even": "true"}, {"search.n": "<9", "search.even": "true"}, {"search.even": ">0"}):
        pages = [await virtual.get("/tagged/instances", pageSize=2, **search)]
        while pages[-1]["hasNextPage"]:
            pages.append(await virtual.get("/tagged/instances", pageSize=2, cursor=pages[-1]["cursor"], **search))
        assert [[instance["id"] for instance in page["instances"]] for page in pages] == [
            ["t8", "t6"],
            ["t4", "t2"],
            ["t0"],
        ]


async def test_a_search_can_be_combined_with_a_status_and_is_confined_to_one_workflow(h: Harness, virtual: Api) -> None:
    await tag(h, virtual, a={"n": 1}, b={"n": 1}, c={"n": 2})
    await virtual.post("/tagged/instances/a/terminate")
    await virtual.post("/tagged/instances/c/terminate")

    async def ids(workflow: str, **query: str) -> list[str]:
        return [instance["id"] for instance in (await virtual.get(f"/{workflow}/instances", **query))["instances"]]

    assert await ids("tagged", status="terminated", **{"search.n": "1"}) == ["a"]
    assert await ids("tagged", status="waiting", **{"search.n": ">=1"}) == ["b"]
    assert await ids("waiter", **{"search.n": "1"}) == []
    assert await virtual.refused("GET", "/unknown/instances?search.n=1") == (404, "WORKFLOW_NOT_FOUND")


async def test_unknown_query_parameters_are_ignored(h: Harness, virtual: Api) -> None:
    await tag(h, virtual, a={"n": 1})

    for query in ("search=x&searchn=2&n=3", "n=3&n=4&%00=&%00=&search=x&search=y"):
        assert [instance["id"] for instance in (await virtual.get(f"/tagged/instances?{query}"))["instances"]] == ["a"]
