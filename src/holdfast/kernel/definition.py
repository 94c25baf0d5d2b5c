"""Definitions and the registry that holds them: what an app can run, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.core.retry import Retry
from holdfast.errors import (
    DefinitionError,
    ParamsInvalidError,
    WorkflowAlreadyRegisteredError,
    WorkflowNotFoundError,
)
from holdfast.kernel.driver import Driver
from holdfast.kernel.events import NO_EVENTS, Events
from holdfast.kernel.outbox import OutboxHandler
from holdfast.kernel.units import UnitDriver
from holdfast.store.protocol import Fact, NewUnit


class Blueprint(NamedTuple):
    """What a run is made of besides its input, where its start fixes that: the steps of a chain, a graph's nodes."""

    plan: Sequence[Fact]
    units: Sequence[NewUnit] = ()


def _nothing() -> None: ...


@dataclass(slots=True, eq=False)
class Definition:
    """One kind of work. ``driver`` is None for work that only other processes implement."""

    name: str
    kind: str
    driver: Driver | None
    decode_params: Callable[[Any], Any]
    """From plain JSON to the annotated type, exactly as documented; raises ParamsInvalidError."""
    decode_output: Callable[[Any], Any]
    params_type: Any = Any
    """The annotation of the input; None if it takes none."""
    persist: Literal["step", "task"] = "step"
    retry: Retry | None = None
    """Of the workflow as a whole, where a start does not say otherwise."""
    run_ms: int | None = None
    """How long a run may take, where a start does not say otherwise."""
    version: int | None = None
    """Recorded with each run that is started from now on."""
    blueprint: Callable[[int], Blueprint] | None = None
    """Of a run that starts at this time."""
    unit_driver: UnitDriver | None = None
    """In place of ``driver``, where a run is made of units."""
    events: Events = field(default_factory=dict)
    """Declared events by type; other types carry any payload."""
    check: Callable[[], None] = _nothing
    """Raises ``DefinitionError`` if an annotation by which values are decoded cannot be resolved."""

    @property
    def runnable(self) -> bool:
        return self.driver is not None or self.unit_driver is not None

    @property
    def has_defaults(self) -> bool:
        return self.retry is not None or self.run_ms is not None or self.version is not None

    def encode_params(self, params: Any, limits: Limits) -> bytes | None:
        """Encode and check an input, so that a run never starts with something its code cannot take."""
        return encoded_params(self.name, params, self.decode_params, limits)


def encoded_params(workflow: str, params: Any, decode: Callable[[Any], Any], limits: Limits) -> bytes | None:
    data = None if params is None else codec.encode(params, what="params", limit=limits.params)
    try:
        decode(codec.plain(data))
    except ParamsInvalidError as error:
        raise ParamsInvalidError(f"params do not fit workflow {workflow!r}: {error}", error.issues) from None
    return data


class Registry:
    """Definitions by name, in the order they were made."""

    def __init__(self) -> None:
        self._by_name: dict[str, Definition] = {}
        self._runnable: frozenset[str] = frozenset()
        self._steps: dict[str, Callable[[], None]] = {}
        """By the name of a registered step: the check of its annotations."""
        self.outbox: OutboxHandler | None = None
        """Who delivers what runs tell the world."""

    def add(self, definition: Definition) -> None:
        if definition.name in self._by_name:
            raise WorkflowAlreadyRegisteredError(
                f"a workflow named {definition.name!r} is registered already; give one of them another name="
            )
        self.replace(definition)

    def add_step(self, name: str, check: Callable[[], None]) -> None:
        if name in self._steps:
            raise DefinitionError(f"a step named {name!r} is registered already; give one of them another name=")
        self._steps[name] = check

    def check(self) -> None:
        """Raise ``DefinitionError`` if an annotation cannot be resolved. By now, all modules are complete."""
        for definition in self:
            definition.check()
        for check in self._steps.values():
            check()

    def replace(self, definition: Definition) -> None:
        """There is more to it than there was."""
        self._by_name[definition.name] = definition
        self._runnable = frozenset(d.name for d in self if d.runnable)

    def get(self, name: str) -> Definition:
        try:
            return self._by_name[name]
        except KeyError:
            error = WorkflowNotFoundError(f"no workflow named {name!r} is registered")
            # A note, which tracebacks show: the message also goes to callers over HTTP, who may not know the names.
            error.add_note(f"registered: {', '.join(sorted(self._by_name)) or 'none'}")
            raise error from None

    def events(self, name: str) -> Events:
        """The declared events of a workflow; none for a workflow that is not registered here."""
        definition = self._by_name.get(name)
        return NO_EVENTS if definition is None else definition.events

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._by_name.values())

    def runnable(self) -> frozenset[str]:
        """Names of what this process itself can run."""
        return self._runnable
