"""The declarations of an app beside its definitions: limits, schedules, the outbox, workflows of other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from holdfast.core import codec
from holdfast.core.checks import check_flag
from holdfast.core.durations import Duration
from holdfast.core.limits import Limits
from holdfast.core.names import check_workflow_name
from holdfast.core.rate import Rate
from holdfast.errors import AppClosedError, DefinitionError, InvalidOptionError
from holdfast.kernel.definition import Definition, Registry
from holdfast.kernel.events import declared_events
from holdfast.kernel.flow import DeclaredQueue, Limit, check_limit, check_queue
from holdfast.kernel.outbox import DEFAULT_CONCURRENCY, DEFAULT_MAX_ATTEMPTS, DEFAULT_TIMEOUT, outbox_handler
from holdfast.workflow.context import Workflow
from holdfast.workflow.driver import WORKFLOW

if TYPE_CHECKING:
    from holdfast.core.outbound import OutboundEvent
    from holdfast.kernel.schedule_content import OverlapName
    from holdfast.kernel.schedule_options import ScheduleOptions
    from holdfast.kernel.startable import Startable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound="Callable[[OutboundEvent], Any]")


class Declarations:
    """Limits, schedules, the handler of outbound events, and workflows that other programs implement."""

    limits: Limits
    registry: Registry

    def limit(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: Rate | None = None,
        key: str | None = None,
        fair: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> Limit:
        """Declare a limit for the ``limits=`` of steps, workflows, chain steps and graph nodes.

        ``concurrency``: how many may be in progress at the same time, over all runs and workers. ``rate``: how fast
        they may start. ``key``: the field of the params, or the argument of the step, whose value has a limit of its
        own; see also ``Limit.by``. ``fair``: keys share a limit that they have in common evenly, or by ``weights``.
        The values are stored when a worker starts, and ``set_limit`` changes them without a deploy.
        """
        if name in self.registry.limits:
            raise DefinitionError(f"a limit named {name!r} is declared already; use that object, or another name")
        limit = check_limit(Limit(name, concurrency, rate, key, fair, weights))
        self.registry.limits[name] = limit
        return limit

    def queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        paused: bool = False,
        fair: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Declare a queue. Queues need no declaration, unless they have a concurrency or begin paused.

        ``concurrency``: how many runs and graph nodes of the queue are executed at the same time, over all workers: a
        limit with the name ``queue NAME``. ``fair``: runs with different start options ``key`` share the concurrency
        evenly, or by ``weights``. ``paused``: no worker claims from the queue until ``resume_queue``.
        The values are stored when a worker starts; a change at run time holds until the code declares other values.
        """
        check_queue(name)
        if name in self.registry.queues:
            raise DefinitionError(f"a queue named {name!r} is declared already")
        limit = None if concurrency is None else self.limit(f"queue {name}", concurrency=concurrency)
        keys = None
        if check_flag("fair", fair) or weights is not None:
            if limit is None:
                raise InvalidOptionError(f"queue {name!r}: fair and weights need a concurrency, which the keys share")
            keys = self.limit(f"keys of queue {name}", key="key", fair=True, weights=weights)
        self.registry.queues[name] = DeclaredQueue(name, check_flag("paused", paused), limit, keys)

    @overload
    def schedule(
        self, name: str, workflow: Startable[None, Any], *, params: None = ...,
        cron: str | Sequence[str] | None = ..., every: Duration | None = ..., timezone: str = ...,
        overlap: OverlapName = ..., catch_up: Duration | None = ..., jitter: Duration | None = ..., paused: bool = ...,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...  # fmt: skip

    @overload
    def schedule(
        self, name: str, workflow: Startable[T, Any], *, params: T,
        cron: str | Sequence[str] | None = ..., every: Duration | None = ..., timezone: str = ...,
        overlap: OverlapName = ..., catch_up: Duration | None = ..., jitter: Duration | None = ..., paused: bool = ...,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...  # fmt: skip

    @overload
    def schedule(
        self, name: str, workflow: str, *, params: Any = ...,
        cron: str | Sequence[str] | None = ..., every: Duration | None = ..., timezone: str = ...,
        overlap: OverlapName = ..., catch_up: Duration | None = ..., jitter: Duration | None = ..., paused: bool = ...,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...  # fmt: skip

    def schedule(
        self,
        name: str,
        workflow: Startable[Any, Any] | str,
        *,
        params: Any = None,
        cron: str | Sequence[str] | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        overlap: OverlapName = "skip",
        catch_up: Duration | None = None,
        jitter: Duration | None = None,
        paused: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Declare a schedule: its ticks start runs of a workflow, chain or graph.

        ``cron`` texts, the interval ``every`` and ``calendar`` texts give the ticks. ``overlap`` says what a tick does
        while an earlier run is open, ``catch_up`` what happens to ticks that no worker took up in time (None: nothing;
        ``"last"``: the latest one runs; a duration: those due within it run), ``jitter`` delays each tick by a part of
        this time. The declaration is stored when the app is next opened with a worker.

        Example::

            app.schedule("nightly", report, cron="0 3 * * *", timezone="Europe/Berlin", catch_up="1 hour")
        """
        from holdfast.kernel.schedule_options import declare

        if name in self.registry.schedules:
            raise DefinitionError(f"a schedule named {name!r} is declared already; choose another name")
        given: dict[str, Any] = {
            "cron": cron, "every": every, "timezone": timezone, "overlap": overlap, "catch_up": catch_up,
            "jitter": jitter, **options,
        }  # fmt: skip
        definition = self.registry.get(workflow if isinstance(workflow, str) else workflow.name)
        encoded = definition.encode_start(params, self.limits)
        self.registry.schedules[name] = declare(name, definition.name, encoded, paused, given, self.limits)

    @overload
    def outbox(
        self, handler: D, /, *, max_attempts: int = ..., concurrency: int = ..., timeout: Duration = ...
    ) -> D: ...

    @overload
    def outbox(
        self, /, *, max_attempts: int = ..., concurrency: int = ..., timeout: Duration = ...
    ) -> Callable[[D], D]: ...

    def outbox(
        self,
        handler: Any = None,
        /,
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        concurrency: int = DEFAULT_CONCURRENCY,
        timeout: Duration = DEFAULT_TIMEOUT,
    ) -> Any:
        """Register the function that delivers the outbound events of chains; it receives an ``OutboundEvent``.

        The function is async or plain. Each event is delivered at least once, the events of a run in order. A delivery
        fails if the function raises; it is attempted up to ``max_attempts`` times. ``concurrency``: maximum number of
        deliveries at a time. ``timeout``: maximum time of one delivery; events of a worker that died are taken over
        after one and a half times the timeout. Register the function before the app is opened.
        """

        def register(function: Any) -> Any:
            chosen = outbox_handler(function, max_attempts, concurrency, timeout)
            if self.registry.outbox is not None:
                raise DefinitionError("this app has an outbox handler already; let one function call the other")
            self.registry.outbox = chosen
            return function

        return register if handler is None else register(handler)

    @overload
    def remote(
        self, name: str, *, params: type[T], result: type[R], events: Mapping[str, Any] | None = ...
    ) -> Workflow[T, R]: ...

    @overload
    def remote(
        self, name: str, *, params: type[T], result: Any = ..., events: Mapping[str, Any] | None = ...
    ) -> Workflow[T, Any]: ...

    @overload
    def remote(
        self, name: str, *, params: Any = ..., result: type[R], events: Mapping[str, Any] | None = ...
    ) -> Workflow[Any, R]: ...

    @overload
    def remote(
        self, name: str, *, params: Any = ..., result: Any = ..., events: Mapping[str, Any] | None = ...
    ) -> Workflow[Any, Any]: ...

    def remote(
        self, name: str, *, params: Any = Any, result: Any = Any, events: Mapping[str, Any] | None = None
    ) -> Workflow[Any, Any]:
        """Declare a workflow that other processes implement, so that this process can start it.

        ``events``: as in ``@app.workflow``. Without it, events are sent unchecked, and an event that does not fit fails
        the wait that receives it.
        """
        check_workflow_name(name, self.limits)
        decoders = codec.decoder(params, exact=True), codec.decoder(result)
        declared = declared_events(events, self.limits)
        definition = Definition(name, WORKFLOW, None, *decoders, params_type=params, events=declared)
        definition.annotations = lambda: (result,)
        self.registry.add(definition)
        return Workflow(name, _not_here)


async def _not_here(*_args: Any) -> Any:
    raise AppClosedError("this workflow is implemented by another process")
