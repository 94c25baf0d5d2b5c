"""Memo and search attributes of runs, and searches by search terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import Attributes, Condition, CurrentRuns, Finish, NewRun, RestartRun, Term, Verdict
from store.world import FLOW, World, log_line, result, turn, waiting


def search_attributes(**terms: Any) -> Attributes:
    """Search attributes with these terms; a list is several terms."""
    every = [Term(key, one) for key, value in terms.items() for one in (value if isinstance(value, list) else [value])]
    return Attributes(None, repr(terms).encode(), every)


def where(text: str, value: Any) -> Condition:
    key, op = text.split()
    return Condition(key, op, value)


async def _cities(world: World) -> None:
    await world.store.create(
        [
            NewRun(FLOW, "r0", attributes=search_attributes(city="Bonn", total=5)),
            NewRun(FLOW, "r1", attributes=search_attributes(city="Rome", total=10)),
            NewRun(FLOW, "r2", attributes=search_attributes(city="Bonn", total=10.5)),
            NewRun(FLOW, "r3"),
            NewRun(FLOW, "r4", attributes=search_attributes(city="Bonn", total=-3)),
            NewRun("other", "r5", attributes=search_attributes(city="Bonn", total=10)),
        ]
    )


# --------------------------------------------------------------------------------------------------- writing


async def test_a_commit_sets_memo_and_search_attributes(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.commit(
        task, attributes=Attributes(b'{"m":1}', b'{"k":"v"}', [Term("k", "v")]), then_logs=[log_line("l")]
    )

    run = await world.find("a")
    assert answer.verdict is Verdict.APPLIED
    assert (run.memo, run.search) == (b'{"m":1}', b'{"k":"v"}')
    assert await world.ids(search=[where("k =", "v")]) == ["a"]


async def test_new_attributes_replace_the_old_ones(world: World) -> None:
    task = await world.start_claimed("a", attributes=replace(search_attributes(k="old", gone=1), memo=b"1"))

    await world.commit(task, attributes=replace(search_attributes(k="new"), memo=b"2"))

    run = await world.find("a")
    assert (run.memo, run.search) == (b"2", search_attributes(k="new").search)
    assert await world.ids(search=[where("k =", "old")]) == []
    assert await world.ids(search=[where("gone =", 1)]) == []
    assert await world.ids(search=[where("k =", "new")]) == ["a"]


async def test_attributes_that_are_none_keep_their_value(world: World) -> None:
    task = await world.start_claimed("a", attributes=Attributes(b"1", b'{"k":1}', [Term("k", 1)]))

    await world.commit(task, attributes=Attributes(memo=b"2"))
    first = await world.find("a")
    assert await world.ids(search=[where("k =", 1)]) == ["a"]
    await world.commit(task, attributes=Attributes(search=b'{"k":2}', terms=[Term("k", 2)]))
    second = await world.find("a")

    assert (first.memo, first.search) == (b"2", b'{"k":1}')
    assert (second.memo, second.search) == (b"2", b'{"k":2}')
    assert await world.ids(search=[where("k =", 1)]) == []
    assert await world.ids(search=[where("k =", 2)]) == ["a"]


async def test_search_terms_can_be_removed(world: World) -> None:
    task = await world.start_claimed("a", attributes=search_attributes(k=1))

    await world.commit(task, attributes=Attributes(search=b"{}"))

    assert (await world.find("a")).search == b"{}"
    assert await world.ids(search=[where("k =", 1)]) == []


async def test_attributes_are_not_written_when_a_pause_was_requested(world: World) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")

    await world.commit(task, attributes=search_attributes(k=1))

    assert (await world.find("a")).search is None
    assert await world.ids(search=[where("k =", 1)]) == []


async def test_a_stale_turn_writes_no_attributes(world: World) -> None:
    task = await world.start_claimed("a", attributes=search_attributes(k=1))

    await world.commit(task._replace(epoch=9), attributes=search_attributes(k=2))

    assert await world.ids(search=[where("k =", 1)]) == ["a"]


async def test_one_batch_sets_the_attributes_of_many_runs(world: World) -> None:
    tasks = [await world.start_claimed(f"r{n}") for n in range(4)]
    ends: list[Any] = [Finish(Status.COMPLETE), waiting("go"), None, None]

    await world.store.commit(
        [
            turn(task, facts=[result("s")], attributes=search_attributes(n=n), then=end)
            for n, (task, end) in enumerate(zip(tasks, ends, strict=True))
        ]
    )

    assert await world.ids(search=[where("n >=", 0)]) == ["r3", "r2", "r1", "r0"]


# --------------------------------------------------------------------------------------------------- finding


async def test_runs_are_found_by_equality_the_newest_first(world: World) -> None:
    await _cities(world)

    assert await world.ids(search=[where("city =", "Bonn")]) == ["r5", "r4", "r2", "r0"]
    assert await world.ids(workflow=FLOW, search=[where("city =", "Bonn")]) == ["r4", "r2", "r0"]
    assert await world.ids(workflow="other", search=[where("city =", "Bonn")]) == ["r5"]
    assert await world.ids(search=[where("city =", "Berlin")]) == []
    assert await world.ids(search=[where("country =", "Bonn")]) == []


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (where("total <", 10), ["r4", "r0"]),
        (where("total <=", 10), ["r5", "r4", "r1", "r0"]),
        (where("total >", 10), ["r2"]),
        (where("total >=", 10), ["r5", "r2", "r1"]),
        (where("total =", 10), ["r5", "r1"]),
        (where("total =", 10.0), ["r5", "r1"]),
        (where("total =", 10.5), ["r2"]),
        (where("total >", -3), ["r5", "r2", "r1", "r0"]),
        (where("total >", 10**15), []),
        (where("city <", "C"), ["r5", "r4", "r2", "r0"]),
        (where("city >", "Bonn"), ["r1"]),
        (where("city >=", "Bonn"), ["r5", "r4", "r2", "r1", "r0"]),
        (where("city <=", "Bonn"), ["r5", "r4", "r2", "r0"]),
        (where("city <", ""), []),
    ],
)
async def test_runs_are_found_by_comparison(world: World, condition: Condition, expected: list[str]) -> None:
    await _cities(world)

    assert await world.ids(search=[condition]) == expected


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([where("city =", "Bonn"), where("total =", 10)], ["r5"]),
        ([where("city =", "Bonn"), where("total <", 10)], ["r4", "r0"]),
        ([where("total <", 10), where("city =", "Bonn")], ["r4", "r0"]),
        ([where("total >=", 5), where("total <", 10.5)], ["r5", "r1", "r0"]),
        ([where("total >", 5), where("city >", "A"), where("city <", "C")], ["r5", "r2"]),
        ([where("city =", "Bonn"), where("city =", "Rome")], []),
        ([where("total =", 5), where("total =", 5)], ["r0"]),
    ],
)
async def test_all_conditions_must_hold(world: World, conditions: list[Condition], expected: list[str]) -> None:
    await _cities(world)

    assert await world.ids(search=conditions) == expected


@pytest.mark.parametrize("workflow", [None, FLOW])
@pytest.mark.parametrize("condition", [where("k =", 1), where("k >", 0)])
async def test_conditions_combine_with_a_status(world: World, workflow: str | None, condition: Condition) -> None:
    for name in ("a", "b", "c"):
        await world.start(name, attributes=search_attributes(k=1))
    await world.start("d")
    await world.terminate("b")
    await world.terminate("d")

    async def ids(status: Status) -> list[str]:
        return await world.ids(workflow=workflow, status=status, search=[condition])

    assert await ids(Status.TERMINATED) == ["b"]
    assert await ids(Status.ACTIVE) == ["c", "a"]
    assert await ids(Status.PAUSED) == []


@pytest.mark.parametrize("workflow", [None, FLOW])
@pytest.mark.parametrize("condition", [where("k =", 1), where("k >", 0), where("n >=", 3)])
async def test_search_results_are_read_page_by_page(world: World, workflow: str | None, condition: Condition) -> None:
    await world.store.create(
        [NewRun(FLOW, f"r{n}", attributes=search_attributes(k=1 - n % 2, n=10 - n)) for n in range(10)]
    )
    every = await world.ids(workflow=workflow, search=[condition])
    seen: list[str] = []
    before = None

    while page := await world.store.read(CurrentRuns(workflow, before=before, limit=2, search=[condition])):
        assert len(page) <= 2
        seen += [run.instance_id for run in page]
        before = page[-1].instance

    assert seen == every
    assert len(seen) == (8 if condition.key == "n" else 5)


@pytest.mark.parametrize("workflow", [None, FLOW])
async def test_an_id_prefix_selects_the_instances_whose_id_begins_with_it(world: World, workflow: str | None) -> None:
    ids = ["a", "a-", "a-2", "a-1", "a-1-z", "a_1", "A-1", "b-1", "0"]
    await world.store.create([NewRun(FLOW, one) for one in ids])

    async def begin(prefix: str) -> list[str]:
        return await world.ids(workflow=workflow, id_prefix=prefix)

    assert await begin("a-") == ["a-1-z", "a-1", "a-2", "a-"]
    assert await begin("a-1") == ["a-1-z", "a-1"]
    assert await begin("a") == ["a_1", "a-1-z", "a-1", "a-2", "a-", "a"]
    assert await begin("b-2") == []


async def test_an_id_prefix_combines_with_a_status_and_conditions(world: World) -> None:
    await world.store.create(
        [NewRun(FLOW, f"{one}-{n}", attributes=search_attributes(n=n)) for one in "ab" for n in range(4)]
    )
    await world.terminate("a-1")

    assert await world.ids(id_prefix="a-", status=Status.TERMINATED) == ["a-1"]
    assert await world.ids(id_prefix="b-", status=Status.TERMINATED) == []
    assert await world.ids(id_prefix="a-", search=[where("n =", 2)]) == ["a-2"]
    assert await world.ids(id_prefix="b-", search=[where("n >=", 1), where("n <", 3)]) == ["b-2", "b-1"]
    assert await world.ids(id_prefix="a-", search=[where("n >", 0)], status=Status.ACTIVE) == ["a-3", "a-2"]


async def test_a_list_by_id_prefix_returns_each_instance_once_across_pages(world: World) -> None:
    await world.store.create([NewRun(FLOW, f"{one}-{n}") for n in range(5) for one in "ab"])
    await world.store.control(RestartRun(FLOW, "a-2"))
    seen: list[str] = []
    before = None

    while page := await world.store.read(CurrentRuns(FLOW, before=before, limit=2, id_prefix="a-")):
        seen += [run.instance_id for run in page]
        before = page[-1].instance

    assert seen == ["a-4", "a-3", "a-2", "a-1", "a-0"]


async def test_numbers_and_texts_are_never_equal(world: World) -> None:
    await world.start("number", attributes=search_attributes(k=1))
    await world.start("text", attributes=search_attributes(k="1"))

    async def ids(op: str, value: Any) -> list[str]:
        return await world.ids(search=[Condition("k", op, value)])

    assert (await ids("=", 1), await ids("=", "1")) == (["number"], ["text"])
    assert (await ids(">=", 0), await ids(">=", "")) == (["number"], ["text"])
    assert (await ids("<", 5), await ids("<", "5")) == (["number"], ["text"])
    assert (await ids(">", -(10**9)), await ids("<=", "~")) == (["number"], ["text"])


async def test_one_run_may_have_many_values_of_a_key(world: World) -> None:
    await world.start("a", attributes=search_attributes(tag=["red", "round", "red"]))
    await world.start("b", attributes=search_attributes(tag=["blue", "round"]))

    assert await world.ids(search=[where("tag =", "red")]) == ["a"]
    assert await world.ids(search=[where("tag =", "round")]) == ["b", "a"]
    assert await world.ids(search=[where("tag =", "round"), where("tag =", "blue")]) == ["b"]
    assert await world.ids(search=[where("tag >=", "a")]) == ["b", "a"]


@pytest.mark.parametrize("text", ["", "ü", "a\x00b", "%_'\"", "日本", "x" * 500, "\ud800"])
async def test_any_text_can_be_searched_for(world: World, text: str) -> None:
    await world.start("a", attributes=search_attributes(k=text))
    await world.start("b", attributes=search_attributes(k=text + "more"))

    assert await world.ids(search=[where("k =", text)]) == ["a"]


@pytest.mark.parametrize("number", [0, -1, 2**53, -(2**53), 0.1, -1e300, 1.5])
async def test_any_number_can_be_searched_for(world: World, number: float) -> None:
    await world.start("a", attributes=search_attributes(k=number))

    assert await world.ids(search=[where("k =", number)]) == ["a"]
    assert await world.ids(search=[where("k <", number)]) == []
    assert await world.ids(search=[where("k >=", number)]) == ["a"]


async def test_values_of_similar_keys_are_distinct(world: World) -> None:
    await world.start("a", attributes=search_attributes(k="v", kk="w"))

    assert await world.ids(search=[where("k =", "w")]) == []
    assert await world.ids(search=[where("K =", "v")]) == []


async def test_a_run_that_has_ended_can_still_be_found(world: World) -> None:
    task = await world.start_claimed("a", attributes=search_attributes(k=1))
    await world.finish(task)

    assert await world.ids(search=[where("k =", 1)]) == ["a"]


async def test_only_the_current_run_is_found(world: World) -> None:
    await world.start_claimed("a", attributes=search_attributes(k=1))
    await world.restart("a")
    claim = await world.claim_one("w2")

    await world.commit(claim.task, attributes=search_attributes(k=2))

    assert await world.ids(search=[where("k =", 1)]) == []
    [run] = await world.store.read(CurrentRuns(search=[where("k =", 2)]))
    assert run.number == 1


async def test_a_search_returns_complete_run_records(world: World) -> None:
    await world.start_claimed("a", attributes=search_attributes(k=1))

    [run] = await world.store.read(CurrentRuns(search=[where("k =", 1)]))

    assert run == await world.find("a")
