"""Generates random programs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from simulation.programs.program import Program

_MAX_DEPTH = 3
_GRAPH_PROBABILITY = 0.12
_PARCEL_PROBABILITY = 0.15
_BUFFERED_PROBABILITY = 0.2


class ProgramGenerator:
    """Generates programs. Keys are unique, so no two steps of a program have the same name."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._numbers = count(1)

    def rounds(self) -> list[Program]:
        """The programs of an instance. Each program after the first runs in a continue-as-new successor."""
        return [self._seq(_MAX_DEPTH) for _ in range(self._draw.choice([1, 1, 1, 2, 3]))]

    def short(self) -> Program:
        """A program without messages and versions, for a child to which no client sends messages."""
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
        if depth == _MAX_DEPTH and self._draw.random() < 0.4:
            parts.append(self._messages())
        if depth == _MAX_DEPTH and self._draw.random() < 0.1:
            parts.append(self._version())
        return ["seq", parts]

    def _some(self, depth: int, minimum: int, maximum: int) -> list[Program]:
        return [self._any(depth) for _ in range(self._draw.randint(minimum, maximum))]

    def _key(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def _step(self) -> Program:
        draw = self._draw
        return ["step", self._key("s"), draw.randrange(100), draw.choice([0, 0, 0, 1, 2]), draw.choice([0, 0, 5, 60])]

    def _long_step(self) -> Program:
        """A step during which the run stays owned, so events that arrive meanwhile must reach the owner."""
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
    """Add graphs to the end of some programs: one, two in parallel, or one that is cancelled if it takes too long.

    The draws are not those of the generator, so programs without graphs are the same as before graphs were added.
    """
    if draw.random() >= _GRAPH_PROBABILITY:
        return rounds
    first, second = (["graph", f"d{n}", draw.randrange(10), draw.choice([0, 0, 1])] for n in (1, 2))
    timeout = ["sleep", "d3", draw.choice([5, 50, 200])]
    added = draw.choice([first, ["par", [first, second]], ["race", [first, timeout]]])
    return [*rounds[:-1], ["seq", [*rounds[-1][1], added]]]


def with_parcels(rounds: list[Program], draw: Random) -> list[Program]:
    """Add to some programs, in the first or last round, parts that send invalid parcels and receive parcels."""
    if draw.random() >= _PARCEL_PROBABILITY:
        return rounds
    misfit = ["misfit", "y1", f"i{draw.randint(1, 5)}"]
    receive = ["parcels", "y2", draw.randint(1, 3), draw.choice([300, 1500])]
    place = draw.choice([0, len(rounds) - 1])
    added = ["seq", [*rounds[place][1], misfit, receive]]
    return [*rounds[:place], added, *rounds[place + 1 :]]


def is_buffered(draw: Random) -> bool:
    """Decide whether the programs of an instance run with ``persist="task"``."""
    return draw.random() < _BUFFERED_PROBABILITY


def with_stamps(rounds: list[Program], draw: Random) -> list[Program]:
    """Add to the beginning of each round steps whose results a worker buffers while a longer step runs.

    Some of these run in parallel with a step that has a live transaction, which may be committed with the buffer.
    """
    return [["seq", [_stamps(n, draw), *program[1]]] for n, program in enumerate(rounds)]


def _stamps(n: int, draw: Random) -> Program:
    burst: Program = ["seq", [["stamp", f"u{n}.{i}", ms] for i, ms in enumerate([0, 0, draw.choice([100, 400])], 1)]]
    live = ["live", f"u{n}.4", draw.randrange(100), draw.choice([20, 80])]
    return draw.choice([burst, burst, ["par", [burst, live]]])
