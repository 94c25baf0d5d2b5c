"""Definitions of graphs: refused definitions, stored shapes and flowcharts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import DefinitionError, Graph, Holdfast, InvalidNameError, InvalidOptionError, Retry, StepTx
from holdfast.graph.edges import is_mismatch
from holdfast.graph.shape import NodeShape, Shape, UnitPosition
from holdfast.testing import Harness


@pytest.fixture
def etl() -> Graph:
    return Holdfast("sqlite://").graph("etl")


async def nothing() -> None: ...


def test_the_error_for_a_cycle_shows_its_path(etl: Graph) -> None:
    etl.node(name="a", after=["c"])(nothing)
    etl.node(name="b", after=["a"])(nothing)
    with pytest.raises(DefinitionError, match="has a cycle: a -> b -> c -> a"):
        etl.node(name="c", after=["b"])(nothing)


def test_a_node_cannot_come_after_itself(etl: Graph) -> None:
    with pytest.raises(DefinitionError, match="a -> a"):
        etl.node(name="a", after=["a"])(nothing)


def test_a_node_name_can_be_used_once(etl: Graph) -> None:
    etl.node(name="a")(nothing)
    with pytest.raises(DefinitionError, match="has a node 'a' already"):
        etl.node(name="a")(nothing)


def test_an_undefined_predecessor_is_refused_with_the_defined_nodes(etl: Graph) -> None:
    etl.node(name="a", after=["nowhere"])(nothing)
    with pytest.raises(DefinitionError, match="'a' comes after 'nowhere', which graph 'etl' does not have; it has a"):
        etl.to_mermaid()


async def test_a_graph_with_an_undefined_predecessor_cannot_be_started() -> None:
    app = Holdfast("sqlite://")
    etl = app.graph("etl")
    etl.node(name="a", after=["nowhere"])(nothing)
    async with app.connect():
        with pytest.raises(DefinitionError):
            await app.start(etl)
        assert (await app.list()).items == []


async def test_a_graph_without_nodes_cannot_be_started() -> None:
    app = Holdfast("sqlite://")
    app.graph("empty")
    async with app.connect():
        with pytest.raises(DefinitionError, match="'empty' has no nodes"):
            await app.start("empty")


def test_a_function_that_is_no_node_cannot_be_a_predecessor(etl: Graph) -> None:
    with pytest.raises(DefinitionError, match="which is not a node of graph 'etl'"):
        etl.node(name="a", after=[nothing])(nothing)


def _with_parameter(name: str, annotation: Any = int) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"annotation": annotation}
    exec(f"async def function({name}: annotation) -> None: ...", namespace)
    function: Callable[..., Any] = namespace["function"]
    return function


@pytest.mark.parametrize(
    "build",
    [
        lambda etl: etl.node(name="b")(_with_parameter("a")),
        lambda etl: etl.node(name="b", after=["a"])(_with_parameter("b")),
        lambda etl: etl.node(name="b", after=["a"], when=lambda c: c)(nothing),
        lambda etl: etl.node(name="b", after=["a"], run="w", input=lambda c: c),
        lambda etl: etl.node(name="b")(_with_parameter("tx", StepTx)),
    ],
    ids=["not after it", "itself", "when", "input", "a transaction"],
)
def test_a_parameter_without_a_matching_predecessor_is_refused(etl: Graph, build: Callable[[Graph], Any]) -> None:
    etl.node(name="a")(nothing)
    with pytest.raises(DefinitionError, match="that is not available"):
        build(etl)


def test_a_parameter_with_a_default_needs_no_predecessor(etl: Graph) -> None:
    async def b(limit: int = 10) -> None: ...

    etl.node(b)
    assert etl.shape.number == {"b": 1}


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("returned", "parameter", "mismatch"),
    [
        (int, int, False),
        (int, float, False),
        (float, int, True),
        (bool, int, True),
        (str, int, True),
        (int, str, True),
        (list[int], list[int], False),
        (list[int], list[str], True),
        (list[int], int, True),
        (tuple[int, ...], list[int], False),
        (tuple[int, str], list[int], False),
        (list[int] | None, list[int], False),
        (str | None, int, True),
        (int, int | str, False),
        (float, int | str, True),
        (dict[str, int], dict[str, int], False),
        (dict[str, int], list[int], True),
        (Point, dict[str, int], False),
        (dict[str, int], Point, False),
        (Point, int, False),  # a custom serializer may turn it into an int
        (Any, int, False),
        (int, Any, False),
        (None.__class__, int, True),
    ],
)
def test_only_types_that_can_never_fit_are_a_mismatch(returned: Any, parameter: Any, mismatch: bool) -> None:
    assert is_mismatch(returned, parameter) is mismatch


def test_a_mismatched_edge_is_refused_whichever_node_is_defined_first(etl: Graph) -> None:
    @etl.node
    async def a() -> str:
        return ""

    with pytest.raises(DefinitionError, match="'b': its function takes a: int, and node 'a' returns str"):
        etl.node(name="b", after=[a])(_with_parameter("a", int))

    etl.node(name="c", after=["d"])(_with_parameter("d", int))
    with pytest.raises(DefinitionError, match="'c': its function takes d: int, and node 'd' returns str"):

        @etl.node
        async def d() -> str:
            return ""


def test_mapped_edges_are_checked_by_item_type(etl: Graph) -> None:
    @etl.node
    async def numbers() -> list[int]:
        return []

    @etl.node
    async def number() -> int:
        return 0

    etl.node(name="fits", map=numbers)(_with_parameter("numbers", int))
    with pytest.raises(DefinitionError, match="takes numbers: str, and node 'numbers' returns int"):
        etl.node(name="b", map=numbers)(_with_parameter("numbers", str))
    with pytest.raises(DefinitionError, match="mapped over 'number', which returns int, not a list"):
        etl.node(name="c", map=number)(_with_parameter("number", int))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "-a", "x" * 300, 3])
def test_an_invalid_node_name_is_refused(etl: Graph, name: Any) -> None:
    with pytest.raises((InvalidNameError, TypeError)):
        etl.node(name=name)(nothing if name else _nameless)


def _nameless() -> None: ...


_nameless.__name__ = ""


def test_a_node_cannot_be_named_params(etl: Graph) -> None:
    with pytest.raises(DefinitionError, match="cannot be named 'params'"):
        etl.node(name="params")(nothing)


@pytest.mark.parametrize("options", [{"retry": 3}, {"timeout": "soon"}, {"timeout": 0}])
def test_invalid_options_of_a_node_are_refused(etl: Graph, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        etl.node(name="a", **options)(nothing)


def test_input_is_refused_for_a_node_with_a_function(etl: Graph) -> None:
    with pytest.raises(InvalidOptionError, match="input= is for a node with run="):
        etl.node(name="a", input=lambda: 1)(nothing)  # type: ignore[call-overload]


@pytest.mark.parametrize("run", [3, object(), nothing])
def test_run_must_be_a_definition_or_a_name(etl: Graph, run: Any) -> None:
    with pytest.raises(DefinitionError, match="run= must be a workflow"):
        etl.node(run=run)


@pytest.mark.parametrize("version", [0, -1, "2", True, 1.5])
def test_a_version_must_be_a_positive_integer(version: Any) -> None:
    with pytest.raises(InvalidOptionError, match="version must be"):
        Holdfast("sqlite://").graph("etl", version=version)


def test_a_node_can_be_called_as_its_function(etl: Graph) -> None:
    @etl.node(retry=Retry(limit=1))
    def double(n: int = 2) -> int:
        """Twice."""
        return 2 * n

    assert double(4) == 8
    assert double.__doc__ == "Twice."


def test_a_graph_is_rendered_as_a_flowchart(etl: Graph) -> None:
    @etl.node
    async def extract() -> list[int]:
        return []

    @etl.node(map=extract)
    async def clean(extract: int) -> int:
        return extract

    etl.node(run="report", after=[clean])
    assert etl.to_mermaid() == (
        'flowchart TD\n    n1["extract"]\n    n2[["clean"]]\n    n3(["report"])\n    n1 ==> n2\n    n2 --> n3\n'
    )


def test_a_stored_shape_is_read_back_unchanged() -> None:
    shape = Shape([NodeShape("a"), NodeShape("b", ("a",), map="a"), NodeShape("c", ("a", "b"), run="w")])
    meta = shape.meta(3, 1000)
    assert Shape.of_meta(meta).nodes == shape.nodes
    assert shape.descendants(1) == [2, 3]
    assert shape.descendants(3) == []


@pytest.mark.parametrize(
    "position", [UnitPosition(1), UnitPosition(1, 0), UnitPosition(77, 99_999), UnitPosition((1 << 20) - 1, 3)]
)
def test_a_unit_encodes_its_position(position: UnitPosition) -> None:
    assert UnitPosition.of(position.unit) == position
    assert position.unit < 2**63


async def test_the_version_can_be_a_positional_argument() -> None:
    app = Holdfast("sqlite://")
    graph = app.graph("etl", 7)

    @graph.node
    async def only() -> None: ...

    async with Harness(app) as h:
        run = await h.start(graph)
        assert (await run.facts("meta"))["meta"]["wf_version"] == 7
