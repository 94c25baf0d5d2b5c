"""Random programs: what a simulated workflow does, as plain JSON, and what may come of it.

A program is a list: its kind, then its parts. ``fits`` is the second opinion on what running it gives: it knows
nothing of the engine.

::

    ["step", key, value, fails, ms]    a step that fails so many times first, and takes so long
    ["plain", key, value, fails]       as a function that is not async
    ["tx", key, value, ms]             with a row written in its transaction
    ["live", key, value, ms]           with a row written in a transaction that is open while it runs
    ["gives_up", key]                  fails more often than it is tried
    ["too_slow", key]                  takes longer than its timeout
    ["poison", key, value]             may take its worker with it
    ["sleep", key, ms]
    ["event", key, type, ms]           waits for an event at most so long
    ["messages", key, topic, n, ms]    receives up to n messages, waiting so long for each
    ["parcels", key, n, ms]            as messages, of an event type that the workflow declares
    ["misfit", key, instance]          sends another instance a parcel that does not fit the declaration
    ["child", key, program]
    ["abandon", key, program]          starts a child and does not wait for it
    ["tell", key, instance]            sends a message to another instance, if it lives
    ["ask", key, value, refuse]        asks a child of its own something, which answers or refuses to
    ["link", key, value, dies]         is linked to a child, and hears what becomes of it
    ["bound", key]                     runs a child that is linked to one that dies
    ["saga", key, n, fails]            n steps that are undone if one more fails
    ["graph", key, n, fails]           runs a graph as a child
    ["version", key, value]            does what its version of the code does; not within another part
    ["stamp", key, ms]                 a step that takes so long, and whose result is the number of its calls so far
    ["seq" | "par" | "race", programs]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

Program = list[Any]

FAILED = "failed"
LATE = "late"
TOLD = "told"
NOBODY = "nobody"
REFUSED = "refused"
DOWN = "down"
GOSSIP = "gossip"
"""The topic of messages between instances."""
PARCEL = "parcel"
"""The event type that the workflow declares."""
MISFITS: list[Any] = [None, 7, {"number": 1}, {"number": "1", "label": "one"}, {"number": 1, "label": None}]
"""Payloads that do not fit a parcel."""
_DEEPEST = 3
_WITH_GRAPHS = 0.12
_WITH_PARCELS = 0.15
_BUFFERED = 0.2


class Writer:
    """Writes programs. Keys are unique, so a program has no two steps of one name."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._numbers = count(1)

    def rounds(self) -> list[Program]:
        """What an instance does: one program, and then another by continue-as-new, perhaps."""
        return [self._seq(_DEEPEST) for _ in range(self._draw.choice([1, 1, 1, 2, 3]))]

    def short(self) -> Program:
        """A program without messages and versions, for a child that nobody sends anything to."""
        return self._seq(1)

    def _any(self, depth: int) -> Program:
        leaves = [
            self._step, self._step, self._step, self._plain, self._tx, self._live, self._gives_up, self._too_slow,
            self._poison, self._sleep, self._sleep, self._event, self._event, self._tell, self._ask, self._link,
            self._bound, self._saga,
        ]  # fmt: skip
        nested: list[Callable[[], Program]] = [
            lambda: self._seq(depth - 1),
            lambda: ["par", self._some(depth - 1, 2, 3)],
            lambda: ["race", self._some(depth - 1, 2, 3)],
            lambda: ["child", self._key("c"), self._seq(depth - 1)],
            lambda: ["abandon", self._key("a"), self._seq(0)],
            lambda: ["par", [self._event(), self._long_step()]],
            lambda: ["par", [self._live(), self._step(), self._step()]],
        ]
        return self._draw.choice([*leaves, *nested, *nested] if depth > 0 else leaves)()

    def _seq(self, depth: int) -> Program:
        parts = self._some(depth, 1, 4)
        if depth == _DEEPEST and self._draw.random() < 0.4:
            parts.append(self._messages())
        if depth == _DEEPEST and self._draw.random() < 0.1:
            parts.append(self._version())
        return ["seq", parts]

    def _some(self, depth: int, least: int, most: int) -> list[Program]:
        return [self._any(depth) for _ in range(self._draw.randint(least, most))]

    def _key(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def _step(self) -> Program:
        draw = self._draw
        return ["step", self._key("s"), draw.randrange(100), draw.choice([0, 0, 0, 1, 2]), draw.choice([0, 0, 5, 60])]

    def _long_step(self) -> Program:
        """A run that waits beside it stays where it is: what comes meanwhile must find its way there."""
        return ["step", self._key("s"), self._draw.randrange(100), 0, 1600]

    def _plain(self) -> Program:
        return ["plain", self._key("p"), self._draw.randrange(100), self._draw.choice([0, 0, 1])]

    def _tx(self) -> Program:
        return ["tx", self._key("t"), self._draw.randrange(100), self._draw.choice([0, 0, 60, 250])]

    def _live(self) -> Program:
        return ["live", self._key("v"), self._draw.randrange(100), self._draw.choice([0, 0, 20, 80])]

    def _gives_up(self) -> Program:
        return ["gives_up", self._key("g")]

    def _too_slow(self) -> Program:
        return ["too_slow", self._key("l")]

    def _poison(self) -> Program:
        return ["poison", self._key("x"), self._draw.randrange(100)]

    def _sleep(self) -> Program:
        return ["sleep", self._key("z"), self._draw.choice([1, 20, 150, 700])]

    def _event(self) -> Program:
        key = self._key("e")
        return ["event", key, f"event.{key}", self._draw.choice([30, 300, 1500])]

    def _tell(self) -> Program:
        return ["tell", self._key("q"), f"i{self._draw.randint(1, 5)}"]

    def _ask(self) -> Program:
        return ["ask", self._key("k"), self._draw.randrange(100), self._draw.random() < 0.3]

    def _link(self) -> Program:
        return ["link", self._key("n"), self._draw.randrange(100), self._draw.random() < 0.5]

    def _bound(self) -> Program:
        return ["bound", self._key("b")]

    def _saga(self) -> Program:
        return ["saga", self._key("o"), self._draw.randint(1, 3), self._draw.random() < 0.6]

    def _version(self) -> Program:
        return ["version", self._key("w"), self._draw.randrange(100)]

    def _messages(self) -> Program:
        key = self._key("m")
        return ["messages", key, "topic", self._draw.randint(1, 3), self._draw.choice([300, 1500])]


def with_graphs(rounds: list[Program], draw: Random) -> list[Program]:
    """Some programs run graphs at their end: one, two at once, or one that is cancelled if it takes too long.

    The draws are not those of the writer, so that programs without graphs stay what they were before there were any.
    """
    if draw.random() >= _WITH_GRAPHS:
        return rounds
    one, two = (["graph", f"d{n}", draw.randrange(10), draw.choice([0, 0, 1])] for n in (1, 2))
    late = ["sleep", "d3", draw.choice([5, 50, 200])]
    added = draw.choice([one, ["par", [one, two]], ["race", [one, late]]])
    return [*rounds[:-1], ["seq", [*rounds[-1][1], added]]]


def with_parcels(rounds: list[Program], draw: Random) -> list[Program]:
    """Some programs send parcels that do not fit, and receive parcels in their first or last round."""
    if draw.random() >= _WITH_PARCELS:
        return rounds
    misfit = ["misfit", "y1", f"i{draw.randint(1, 5)}"]
    receive = ["parcels", "y2", draw.randint(1, 3), draw.choice([300, 1500])]
    place = draw.choice([0, len(rounds) - 1])
    added = ["seq", [*rounds[place][1], misfit, receive]]
    return [*rounds[:place], added, *rounds[place + 1 :]]


def is_buffered(draw: Random) -> bool:
    """The programs of an instance run with ``persist="task"``."""
    return draw.random() < _BUFFERED


def with_stamps(rounds: list[Program], draw: Random) -> list[Program]:
    """Add steps to the beginning of each round whose results a worker buffers while a longer step runs.

    Beside them, a step with an open transaction may be committed together with the buffer.
    """
    return [["seq", [_stamps(n, draw), *program[1]]] for n, program in enumerate(rounds)]


def _stamps(n: int, draw: Random) -> Program:
    burst: Program = ["seq", [["stamp", f"u{n}.{i}", ms] for i, ms in enumerate([0, 0, draw.choice([100, 400])], 1)]]
    live = ["live", f"u{n}.4", draw.randrange(100), draw.choice([20, 80])]
    return draw.choice([burst, burst, ["par", [burst, live]]])


def parcel(number: int) -> dict[str, Any]:
    """A payload that fits the declaration."""
    return {"number": number, "label": f"parcel {number}"}


def diamond(n: int) -> dict[str, Any]:
    """The result of the graph that is run with this number."""
    even = {"even": n} if n % 2 == 0 else {}
    return {"source": [n, n + 1], "each": [2 * n, 2 * n + 2], "total": 4 * n + 2} | even


def parts(program: Program) -> Iterator[Program]:
    """A program and all that is in it."""
    yield program
    match program:
        case ["seq" | "par" | "race", inner]:
            for one in inner:
                yield from parts(one)
        case ["child" | "abandon", _, inner]:
            yield from parts(inner)


def sure(program: Program) -> Iterator[Program]:
    """What is surely done by whoever ends such a program, all of it and by itself."""
    match program:
        case ["seq" | "par", inner]:
            for one in inner:
                yield from sure(one)
        case _:
            yield program


def fits(program: Program, result: Any, sent: frozenset[str]) -> bool:  # noqa: PLR0912  (a case for each kind)
    """Whether a program may have this result. ``sent``: the types of the events that somebody sent."""
    match program:
        case ["step" | "plain" | "tx" | "live" | "poison", _, value, *_]:
            return bool(result == value)
        case ["too_slow", _]:
            return result in (FAILED, LATE, 0)  # its clock may have jumped
        case ["gives_up", _]:
            return result in (FAILED, LATE)
        case ["stamp", _, _]:
            return isinstance(result, int) and result > 0
        case ["sleep" | "abandon", *_]:
            return result is None
        case ["tell", *_]:
            return result in (TOLD, NOBODY)
        case ["ask", _, value, refuse]:
            return result in (LATE, NOBODY, REFUSED if refuse else value + 1)
        case ["link", _, value, dies]:
            return bool(result == (DOWN if dies else value))
        case ["bound", _]:
            return bool(result == FAILED)
        case ["saga", _, n, fails]:
            return bool(result == (FAILED if fails else list(range(n))))
        case ["graph", _, n, _]:
            return bool(result == diamond(n))
        case ["version", _, value]:
            return result in ([1, value], [2, value])
        case ["event", key, type_, _]:
            return result == LATE or (type_ in sent and result == key)
        case ["misfit", *_]:
            return bool(result == REFUSED)
        case ["messages", _, _, n, _] | ["parcels", _, n, _]:
            return isinstance(result, list) and len(result) <= n and _in_order(result)
        case ["child", _, inner]:
            return fits(inner, result, sent)
        case ["seq" | "par", inner]:
            if not isinstance(result, list) or len(result) != len(inner):
                return False
            return all(fits(one, got, sent) for one, got in zip(inner, result, strict=True))
        case ["race", inner]:
            return isinstance(result, list) and len(result) == 2 and fits(inner[result[0]], result[1], sent)
        case _:
            raise ValueError(f"no program: {program!r}")


def messages(rounds: list[Program], results: list[Any], kind: str = "messages") -> list[list[int]]:
    """The messages that an instance received in each of its rounds, without those in which there were none."""
    found = [
        [number for one, got in zip(program[1], result, strict=True) if one[0] == kind for number in got]
        for program, result in zip(rounds, results, strict=True)
    ]
    return [numbers for numbers in found if numbers]


def _in_order(numbers: list[int]) -> bool:
    """None left out, none twice."""
    return numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
