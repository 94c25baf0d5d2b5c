"""The entries of the table of features."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from simulation.programs.program import Program

if TYPE_CHECKING:
    from holdfast.client import Client


@dataclass(slots=True)
class PartMaker:
    """Makes parts of one program. Keys are unique, so no two steps of a program have the same name."""

    draw: Random
    """The random stream of the feature whose part is made."""
    nested: Callable[[], Program]
    """Makes a small program for a node of a graph."""
    numbers: count[int] = field(default_factory=lambda: count(1))

    def key(self, prefix: str) -> str:
        return f"{prefix}{next(self.numbers)}"

    def step(self, *, ms: int | None = None) -> Program:
        """A step that succeeds at its first call."""
        duration = self.draw.choice([0, 0, 5, 60]) if ms is None else ms
        return ["step", self.key("s"), self.draw.randrange(100), 0, duration]


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request of a client on one instance, at any moment."""

    send: Callable[[Client, str, str, Any], Awaitable[object]]
    """Sends the request: client, workflow, id of the instance, details."""
    details: Callable[[Random, str, Any], Any] | None = None
    """Draws the details for a workflow and its parameters; None if the request is not possible for the instance."""
    tries: int = 0
    """Number of times that a client repeats the request while the run is in no state for it."""
    removes: bool = False
    """The request may delete the instance."""
    if_it_breaks: float = 0.0
    """Probability of the request, in every seed, for an instance whose run fails until it is repaired."""
    then: str | None = None
    """The feature whose request follows 0.3 seconds later."""
    end: str | None = None
    """The status in which the request may end the run."""
    begins_again: bool = False
    """The code of the instance may run again from its beginning: earlier results and messages are those of a run
    before it."""
    refused: tuple[type[Exception], ...] = ()
    """Errors that say that the run is in no state for the request. Errors for runs that have ended are known."""
    weight: float = 0.55
    """Frequency in seeds that have this request. 0: the request only follows another one."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of the engine. At most one of ``part``, ``around`` and ``request`` is given.

    A feature with none of them is reached by the programs themselves, which call ``ExternalSystem.reached``.
    """

    name: str
    part: Callable[[PartMaker], Program] | None = None
    """Makes a part of a program that uses the feature."""
    around: str | None = None
    """The kind of a part that contains other parts of the program: ``par``, ``race``, ``child``, ``abandon``."""
    request: ControlRequest | None = None
    weight: float = 1.0
    """Frequency in programs, relative to that of other features."""
    copies: int = 1
    """Maximum number of parts in one program."""
    outermost: bool = False
    """The part stays in the sequence of its round: clients send to it, or its results are compared by position."""
    kinds: tuple[str, ...] = ()
    """Kinds of parts that use the feature; when one begins, the feature is reached. Default: the name."""
    never_with: Mapping[str, str] = field(default_factory=dict)
    """Features that cannot meet this one, each with the reason."""
