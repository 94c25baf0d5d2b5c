"""Definitions, and the registry that holds them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.core.retention import Retention
from holdfast.core.retry import Retry
from holdfast.core.secret import has_secret
from holdfast.errors import (
    DefinitionError,
    ParamsInvalidError,
    WorkflowAlreadyRegisteredError,
    WorkflowNotFoundError,
)
from holdfast.kernel.events import NO_EVENTS, Events
from holdfast.kernel.flow import DeclaredQueue, Limit
from holdfast.kernel.outbox import OutboxHandler

if TYPE_CHECKING:
    from holdfast.core.start_policies import Batch
    from holdfast.kernel.driver import Driver
    from holdfast.kernel.inspection import Inspect
    from holdfast.kernel.model import Model, Models
    from holdfast.kernel.schedule_content import Declaration
    from holdfast.kernel.unit_driver import UnitDriver
    from holdfast.store.protocol import Fact, LimitKey, NewUnit


class Blueprint(NamedTuple):
    """The parts of a run that are fixed at its start: the steps of a chain, the nodes of a graph."""

    plan: Sequence[Fact]
    units: Sequence[NewUnit] = ()


def _nothing() -> None: ...


@dataclass(slots=True, eq=False)
class Definition:
    """A registered workflow, chain or graph.

    ``driver`` and ``unit_driver`` are None for a definition that only other processes implement.
    """

    name: str
    kind: str
    """Kind of the definition's runs: the ``kind`` of a registered ``Model``."""
    driver: Driver | None
    decode_params: Callable[[Any], Any]
    """Decode plain JSON of the documented form to the annotated type; raises ``ParamsInvalidError``."""
    decode_output: Callable[[Any], Any]
    params_type: Any = Any
    """The annotation of the input; None if there is no input."""
    persist: Literal["step", "task"] = "step"
    retry: Retry | None = None
    """Default retry policy of a run as a whole; a start may replace it."""
    run_ms: int | None = None
    """Default timeout of a run; a start may replace it."""
    pinned: bool = False
    """Runs finish on the release (``WorkerConfig.version``) that started them."""
    retention: Retention | None = None
    """The time for which finished runs are kept; None: that of the app's ``retention``."""
    version: int | None = None
    """Version that new runs record."""
    blueprint: Callable[[int], Blueprint] | None = None
    """The blueprint of a run that starts at the given time."""
    unit_driver: UnitDriver | None = None
    """Used instead of ``driver`` if runs consist of units."""
    events: Events = field(default_factory=dict)
    """Declared events by type; events of other types may have any payload."""
    inspect: Inspect | None = None
    """Opens a run for inspection on this code. None: the definition's runs cannot be inspected here."""
    limits: tuple[Limit, ...] = ()
    """Limits of the runs."""
    hold: Literal["working", "until_end"] = "working"
    """The time for which a run holds its permit: while it has a worker, or until it ends."""
    batch: Batch | None = None
    """Starts are collected: a run receives a list of the params of several starts."""
    doc: str = ""
    """The docstring of the code."""
    annotations: Callable[[], Iterable[Any]] = tuple
    """The annotations of the code, besides those of the input and of the declared events."""
    _has_secret: bool | None = None
    check: Callable[[], None] = _nothing
    """Raises ``DefinitionError`` if an annotation by which values are decoded cannot be resolved."""

    @property
    def runnable(self) -> bool:
        return self.driver is not None or self.unit_driver is not None

    @property
    def has_secret(self) -> bool:
        """True if an annotation contains a ``Secret``. Evaluated for the first time when the app opens."""
        if self._has_secret is None:
            in_events = any(event.has_secret() for event in self.events.values())
            self._has_secret = in_events or any(map(has_secret, (self.params_type, *self.annotations())))
        return self._has_secret

    @property
    def has_defaults(self) -> bool:
        return self.retry is not None or self.run_ms is not None or self.version is not None

    def limits_of(self, params: bytes | None, start_key: str | None) -> list[LimitKey]:
        """The limits of a run with their keys. ``start_key``: the start option ``key``."""
        decoded = self.decode_params(codec.plain(params))
        return [limit.of_params(decoded, start_key) for limit in self.limits]

    def encode_params(self, params: Any, limits: Limits) -> bytes | None:
        """Encode and check an input, so that no run starts with an input that its code cannot decode."""
        return encoded_params(self.name, params, self.decode_params, limits)

    def encode_start(self, params: Any, limits: Limits) -> bytes | None:
        """Encode the input of a start. A run of a workflow with batches receives a list, also for one start."""
        return self.encode_params(params if self.batch is None else [params], limits)


def encoded_params(workflow: str, params: Any, decode: Callable[[Any], Any], limits: Limits) -> bytes | None:
    data = None if params is None else codec.encode(params, what="params", limit=limits.params)
    try:
        if data is not None:
            return codec.checked(params, data, decode, "params")[0]
        decode(None)
    except ParamsInvalidError as error:
        raise ParamsInvalidError(f"params do not fit workflow {workflow!r}: {error}", error.issues) from None
    return None


class Registry:
    """Definitions by name in the order of registration, and authoring models by kind.

    ``load_models`` is called when a run is first read: a program that only defines workflows does not load the models.
    """

    def __init__(self, load_models: Callable[[], Models]) -> None:
        self._load_models = load_models
        self._by_name: dict[str, Definition] = {}
        self._runnable: frozenset[str] = frozenset()
        self._pinned: frozenset[str] = frozenset()
        self._steps: dict[str, Callable[[], None]] = {}
        """Checks of annotations, by the name of the registered step."""
        self.limits: dict[str, Limit] = {}
        """Declared limits by name."""
        self.queues: dict[str, DeclaredQueue] = {}
        """Declared queues by name."""
        self.outbox: OutboxHandler | None = None
        """The handler of outbound events."""
        self.mcp_tools: dict[str, str] = {}
        """Workflows that the MCP server offers as tools, and their descriptions."""
        self.retention: Retention | None = None
        """The time for which finished runs are kept; definitions may replace it."""
        self.schedules: dict[str, Declaration] = {}
        """Declared schedules by name."""
        self.codecs: dict[str, Any] = {}
        """Codecs of workflows that have codecs of their own, by name."""
        self.step_secrets: dict[str, Callable[[], bool]] = {}
        """Tests whether the annotations of a step contain a secret, by the name of the step."""
        self.redacted: tuple[str, ...] = ()
        """Names whose values views hide, besides the default ones."""

    @cached_property
    def models(self) -> Models:
        return self._load_models()

    def model(self, kind: str) -> Model:
        """The model of runs of a kind."""
        return self.models.of_kind(kind)

    def add(self, definition: Definition) -> None:
        if definition.name in self._by_name:
            raise WorkflowAlreadyRegisteredError(
                f"a workflow named {definition.name!r} is registered already; pass another name="
            )
        self.replace(definition)

    def add_step(self, name: str, check: Callable[[], None]) -> None:
        if name in self._steps:
            raise DefinitionError(f"a step named {name!r} is registered already; pass another name=")
        self._steps[name] = check

    def check(self) -> None:
        """Raise ``DefinitionError`` if an annotation cannot be resolved. Called after all modules are imported."""
        for definition in self:
            definition.check()
        for check in self._steps.values():
            check()

    def with_secrets(self) -> Iterator[tuple[str, str]]:
        """The kinds and names of the definitions and steps whose annotations contain a secret."""
        yield from ((definition.kind, definition.name) for definition in self if definition.has_secret)
        yield from (("step", name) for name, has in self.step_secrets.items() if has())

    def replace(self, definition: Definition) -> None:
        """Add a definition, or replace the definition of the same name. A graph is replaced when a node is added."""
        self._by_name[definition.name] = definition
        self._runnable = frozenset(d.name for d in self if d.runnable)
        self._pinned = frozenset(d.name for d in self if d.runnable and d.pinned)

    def get(self, name: str) -> Definition:
        try:
            return self._by_name[name]
        except KeyError:
            error = WorkflowNotFoundError(f"no workflow named {name!r} is registered")
            # A note is shown in tracebacks only. The message also reaches HTTP clients, which may not see the names.
            error.add_note(f"registered: {', '.join(sorted(self._by_name)) or 'none'}")
            raise error from None

    def events(self, name: str) -> Events:
        """The declared events of a workflow; empty for a workflow that is not registered here."""
        definition = self._by_name.get(name)
        return NO_EVENTS if definition is None else definition.events

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._by_name.values())

    def queue_limits(self, queue: str, start_key: str | None) -> list[LimitKey]:
        """The limits of a run in a queue, if the queue is declared with a concurrency."""
        declared = self.queues.get(queue)
        return [] if declared is None else declared.limits_of(start_key)

    def fair_limit(self, queue: str) -> Limit | None:
        """The limit under whose keys runs share a queue, if the queue is declared as fair."""
        declared = self.queues.get(queue)
        return None if declared is None else declared.keys

    def runnable(self) -> frozenset[str]:
        """Names of the definitions that this process implements."""
        return self._runnable

    def pinned(self) -> frozenset[str]:
        """Names of the definitions that this process implements and whose runs are pinned."""
        return self._pinned
