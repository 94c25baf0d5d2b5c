"""Generates random programs from the table of features.

Whether a feature occurs, where its part is placed and how the part is drawn depends on the seed, the place of the
program and the name of the feature only. A new feature therefore changes only the programs in which it occurs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from holdfast.testing.simulation.streams import chance, stream
from simulation.features.feature import Feature, PartMaker
from simulation.features.table import FEATURES
from simulation.programs.program import Program

_DENSITIES = (0.08, 0.18, 0.36)
"""Probabilities of a feature of weight 1 in a program: from programs with few features to programs with many."""
_DENSITY_OF_NESTED = 0.07
_CONTINUED_PROBABILITY = 0.3
_BUFFERED_PROBABILITY = 0.25
_MEMBER_PROBABILITY = 0.35
_MAX_MEMBERS = 3


@dataclass(slots=True)
class _Placed:
    """A part of a program, and the label that determines its place."""

    label: str
    part: Program
    outermost: bool = False


class ProgramGenerator:
    """Generates the programs of one instance. ``place`` names the instance, or the node of a graph that runs it."""

    def __init__(self, seed: int, place: str) -> None:
        self._seed = seed
        self._place = place
        self._numbers = count(1)

    @property
    def buffered(self) -> bool:
        """True if the programs run with ``persist="task"``."""
        return self._chance("persist_task") < _BUFFERED_PROBABILITY

    def rounds(self) -> list[Program]:
        """The programs of an instance. Each program after the first runs in a continue-as-new successor."""
        density = _DENSITIES[int(self._chance("density") * len(_DENSITIES))]
        placed = self._parts(density, outermost=True)
        rounds = 2 + int(2 * self._chance("rounds")) if self._chance("continue_as_new") < _CONTINUED_PROBABILITY else 1
        programs: list[Program] = [["seq", []] for _ in range(rounds)]
        for item in placed:
            programs[int(self._chance(f"round.{item.label}") * rounds)][1].append(item.part)
        return [self._with_stamps(n, program) for n, program in enumerate(programs)] if self.buffered else programs

    def nested(self) -> Program:
        """A small program for a child to which no client sends anything."""
        return ["seq", [item.part for item in self._parts(_DENSITY_OF_NESTED, outermost=False)]]

    def _parts(self, density: float, *, outermost: bool) -> list[_Placed]:
        """The parts of all features that occur, in the order of their places."""
        placed = [
            _Placed(f"{feature.name}.{n}", feature.part(self._maker(feature, n)), feature.outermost)
            for feature in FEATURES
            if feature.part is not None and (outermost or not feature.outermost)
            for n in range(feature.copies)
            if self._chance(f"{feature.name}.{n}") < density * feature.weight
        ]
        placed.sort(key=lambda item: self._chance(f"order.{item.label}"))
        for feature in FEATURES:
            if feature.around is not None and self._chance(feature.name) < 2 * density * feature.weight:
                placed = self._wrapped(feature, placed)
        return placed

    def _wrapped(self, feature: Feature, placed: list[_Placed]) -> list[_Placed]:
        """Put some of the parts into a part that contains others, in the place of the first of them."""
        inside = [
            item
            for item in placed
            if not item.outermost and self._chance(f"{feature.name}.{item.label}") < _MEMBER_PROBABILITY
        ][:_MAX_MEMBERS]
        members, make = [item.part for item in inside], self._maker(feature, 0)
        members += [make.step() for _ in range(2 - len(members))]
        match feature.around:
            case "child" | "abandon" as kind:
                part: Program = [kind, make.key("c"), ["seq", members]]
            case kind:
                part = [kind, members]
        whole = _Placed(feature.name, part)
        labels = {item.label for item in inside}
        if not labels:
            return [*placed, whole]
        first = inside[0].label
        return [
            whole if item.label == first else item for item in placed if item.label == first or item.label not in labels
        ]

    def _with_stamps(self, n: int, program: Program) -> Program:
        """Begin a round with steps whose results a worker buffers while a longer step runs.

        Some of these run in parallel with a step that has a live transaction, which may be committed with the buffer.
        """
        draw = stream(self._seed, f"stamps.{n}.{self._place}")
        burst: Program = [
            "seq", [["stamp", f"u{n}.{i}", ms] for i, ms in enumerate([0, 0, draw.choice([100, 400])], 1)]
        ]  # fmt: skip
        live = ["live", f"u{n}.4", draw.randrange(100), draw.choice([20, 80])]
        return ["seq", [draw.choice([burst, burst, ["par", [burst, live]]]), *program[1]]]

    def _maker(self, feature: Feature, n: int) -> PartMaker:
        draw = stream(self._seed, f"part.{feature.name}.{n}.{self._place}")
        nested = ProgramGenerator(self._seed, f"{self._place}.{feature.name}.{n}")
        return PartMaker(draw, nested.nested, self._numbers)

    def _chance(self, what: str) -> float:
        return chance(self._seed, f"{what}@{self._place}")


def nested_program(seed: int, place: str) -> Program:
    """A small program for a node of a graph."""
    return ProgramGenerator(seed, place).nested()
