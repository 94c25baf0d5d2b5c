"""Checking and encoding of starts and events: user input becomes ``NewRun`` and ``NewEvent`` only here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

from holdfast.core import attributes, codec, names
from holdfast.core.checks import check_enum, check_optional_text, is_whole_number
from holdfast.core.cron import Cron
from holdfast.core.durations import Duration, option_ms, timeout_ms
from holdfast.core.limits import Limits
from holdfast.core.model import DEFAULT_QUEUE, from_ms
from holdfast.core.model import to_ms as time_ms
from holdfast.core.retry import Retry, check_retry
from holdfast.core.show import shown
from holdfast.core.start_policies import Debounce, Dedupe
from holdfast.errors import InvalidInstanceIdError, InvalidOptionError, WorkflowNotFoundError
from holdfast.kernel.definition import Definition, Registry
from holdfast.kernel.events import checked_payload
from holdfast.kernel.flow import check_queue
from holdfast.kernel.options import RunOptions
from holdfast.kernel.start_policies import (
    NO_POLICIES,
    PolicyOptions,
    add_batch,
    apply_policies,
    check_key,
    fair_key_of,
    limited_start,
)
from holdfast.ports import Clock, Runtime
from holdfast.store.protocol import Attributes, NewEvent, NewRun, OnConflict, OnReuse, SingletonStart, StartEvent, Term

E = TypeVar("E", OnConflict, OnReuse)

_MAX_SUMMARY_LENGTH = 1000
_NOTHING_STORED = (None,) * 11
"""The stored options of a start without options."""


class BatchOptions(TypedDict, total=False):
    """Options of a start in a batch besides its id and input; docs/processes.md describes them."""

    on_conflict: Literal["use_existing", "fail", "terminate_existing"]
    on_reuse: Literal["use_existing", "allow", "allow_if_failed", "reject", "retry_if_failed"]
    queue: str
    priority: int
    delay: Duration | None
    start_delay: Duration | None
    start_at: datetime | None
    execution_timeout: Duration | None
    run_timeout: Duration | None
    task_timeout: Duration | None
    retry: Retry | None
    cron: str | None
    memo: Mapping[str, Any] | None
    search: Mapping[str, Any] | None
    context: Mapping[str, Any] | None
    messages: Iterable[tuple[str, Any]]
    summary: str | None
    key: str | None


class StartOptions(BatchOptions, total=False):
    """Options of a start besides its input."""

    id: str | None
    eager: bool
    dedupe: Dedupe | None
    singleton: Literal["skip", "queue", "cancel_running", "replace_waiting"] | None
    debounce: Debounce | Duration | None
    on_limit: Literal["wait", "drop", "reject"]


class ChildOptions(StartOptions, total=False):
    """Options of the start of a child."""

    parent_close: Literal["terminate", "abandon", "request_cancel"]
    wait_for_cancellation: bool


POLICY_OPTIONS = frozenset({"dedupe", "singleton", "debounce", "on_limit"})
BATCH_OPTIONS = frozenset(BatchOptions.__annotations__)
START_OPTIONS = frozenset(StartOptions.__annotations__)
CHILD_OPTIONS = frozenset(ChildOptions.__annotations__) - POLICY_OPTIONS


class ScheduledStart(NamedTuple):
    """A tick whose run is to be created."""

    schedule: str
    tick: int
    workflow: str
    instance_id: str
    params: bytes | None
    queue: str
    priority: int
    options: Mapping[str, Any]
    """In the stored form of ``RunOptions``."""
    last_result: bytes | None


class Requests:
    """Builds the store's requests from user input."""

    def __init__(
        self, registry: Registry, limits: Limits, runtime: Runtime, clock: Clock, version: str | None = None
    ) -> None:
        """``version``: the release of this program, which new runs of the workflows that it implements record."""
        self._registry = registry
        self._version = version
        self._limits = limits
        self._runtime = runtime
        self._clock = clock
        self._root = runtime.random.bytes(16)

    def definition(self, workflow: Any) -> Definition:
        """The definition of a workflow object or a name."""
        name = workflow if isinstance(workflow, str) else getattr(workflow, "name", None)
        if not isinstance(name, str):
            raise WorkflowNotFoundError(
                f"{workflow!r} is not a workflow; pass a function decorated with @app.workflow, or its name"
            )
        return self._registry.get(name)

    def knows(self, workflow: str) -> bool:
        """True if a workflow of this name is registered."""
        return workflow in self._registry

    # --- starts

    def new_run(
        self,
        workflow: Any,
        params: Any = None,
        *,
        id: str | None = None,
        on_conflict: str = "use_existing",
        on_reuse: str = "use_existing",
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        delay: Duration | None = None,
        start_delay: Duration | None = None,
        start_at: datetime | None = None,
        execution_timeout: Duration | None = None,
        run_timeout: Duration | None = None,
        task_timeout: Duration | None = None,
        retry: Retry | None = None,
        cron: str | None = None,
        memo: Mapping[str, Any] | None = None,
        search: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        messages: Iterable[tuple[str, Any]] = (),
        summary: str | None = None,
        key: str | None = None,
        dedupe: Dedupe | None = None,
        singleton: str | None = None,
        debounce: Debounce | Duration | None = None,
        on_limit: str = "wait",
        batch: bool = False,
    ) -> NewRun:
        """The request of a start. ``batch``: the start may join a batch, if the workflow has batches."""
        definition = self.definition(workflow)
        instance_id = self.new_id() if id is None else names.check_instance_id(id, self._limits)
        new = self._plain_start(definition, instance_id, params, queue, priority)
        if on_conflict != "use_existing":
            new.on_conflict = check_enum("on_conflict", on_conflict, OnConflict)
        if on_reuse != "use_existing":
            new.on_reuse = check_enum("on_reuse", on_reuse, OnReuse)
        delayed = delay is not None or start_delay is not None or start_at is not None
        if delayed:
            new.delay_ms = self._delay_ms(delay, start_delay, start_at)
        if messages != ():
            new.start_events = self._start_events(definition.name, messages)
        policies = PolicyOptions(dedupe, singleton, debounce, on_limit)
        chosen_id = id is not None or on_conflict != "use_existing" or on_reuse != "use_existing"
        if policies != NO_POLICIES:
            apply_policies(new, policies, key, chosen_id=chosen_id, delayed=delayed, repeats=cron is not None)
        if batch and definition.batch is not None:
            plain = policies == NO_POLICIES and not chosen_id and cron is None
            self._add_batch(new, definition, params, key, plain=plain)
        single = new.policy.key if isinstance(new.policy, SingletonStart) else None
        timeouts = (execution_timeout, run_timeout, task_timeout)
        stored = (*timeouts, retry, cron, memo, search, context, summary, key, single)
        if definition.has_defaults or stored != _NOTHING_STORED:
            self._add_options(new, self._run_options(definition, *stored))
        if on_limit != "wait":
            limited_start(new, definition, self._registry.queue_limits(new.queue, key), key, on_limit)
        new.fair_key = fair_key_of(new, definition, self._registry.fair_limit(new.queue), key)
        return new

    def _plain_start(self, definition: Definition, instance_id: str, params: Any, queue: str, priority: int) -> NewRun:
        """A start without options."""
        new = NewRun(
            workflow=definition.name,
            instance_id=instance_id,
            params=definition.encode_start(params, self._limits),
            kind=definition.kind,
            queue=check_queue(queue),
            priority=check_priority(priority),
        )
        new.seed = self._seed(definition.name, instance_id)
        if self._version is not None and definition.runnable:
            new.version, new.pinned = self._version, definition.pinned
        if definition.blueprint is not None:
            new.plan, new.units = definition.blueprint(time_ms(self._clock.now()))
        return new

    def _run_options(
        self,
        definition: Definition,
        execution_timeout: Duration | None,
        run_timeout: Duration | None,
        task_timeout: Duration | None,
        retry: Retry | None,
        cron: str | None,
        memo: Mapping[str, Any] | None,
        search: Mapping[str, Any] | None,
        context: Mapping[str, Any] | None,
        summary: str | None,
        key: str | None,
        single: str | None,
    ) -> RunOptions:
        """Check the options that are stored with a run. ``single``: the group of a singleton."""
        return RunOptions(
            retry=definition.retry if retry is None else check_retry(retry),
            cron=None if cron is None else Cron(cron),
            execution_ms=None if execution_timeout is None else timeout_ms("execution_timeout", execution_timeout),
            run_ms=definition.run_ms if run_timeout is None else timeout_ms("run_timeout", run_timeout),
            task_ms=None if task_timeout is None else timeout_ms("task_timeout", task_timeout),
            context={} if context is None else check_context(context, self._limits),
            memo={} if memo is None else attributes.check_memo(memo, self._limits.params),
            search={} if search is None else attributes.check_search(search),
            summary=check_summary(summary),
            version=definition.version,
            key=check_key(key),
            single=single,
        )

    def _add_batch(self, new: NewRun, definition: Definition, params: Any, key: str | None, *, plain: bool) -> None:
        """Make the start an item of a batch. ``plain``: it has no options that a batch excludes."""
        if not plain or new.delay_ms or new.start_events:
            raise InvalidOptionError(
                f"starts of {definition.name!r} are collected in batches: they take no id, start policy, delay, "
                "cron or messages"
            )
        add_batch(new, definition, params, check_key(key), self._limits)

    def scheduled_run(self, start: ScheduledStart) -> NewRun:
        """The run of a tick. Its params were checked when the schedule was created."""
        definition = self._registry.get(start.workflow)
        new = NewRun(
            definition.name,
            start.instance_id,
            start.params,
            definition.kind,
            queue=start.queue,
            priority=start.priority,
        )
        new.seed = self._seed(definition.name, new.instance_id)
        if self._version is not None and definition.runnable:
            new.version, new.pinned = self._version, definition.pinned
        options = RunOptions.of_content(start.options)
        options.check_readable()
        self._add_options(new, replace(
            options,
            retry=definition.retry if options.retry is None else options.retry,
            run_ms=definition.run_ms if options.run_ms is None else options.run_ms,
            version=definition.version,
            schedule=start.schedule,
            scheduled_for=start.tick,
            last_result=() if start.last_result is None else (codec.plain(start.last_result),),
        ))  # fmt: skip
        if definition.blueprint is not None:
            new.plan, new.units = definition.blueprint(time_ms(self._clock.now()))
        new.fair_key = fair_key_of(new, definition, self._registry.fair_limit(new.queue), None)
        return new

    def _delay_ms(self, delay: Duration | None, start_delay: Duration | None, start_at: datetime | None) -> int:
        if sum(option is not None for option in (delay, start_delay, start_at)) > 1:
            raise InvalidOptionError("delay, start_delay and start_at exclude each other; give one of them")
        if start_at is None:
            return option_ms("start_delay", start_delay) if delay is None else option_ms("delay", delay)
        if not isinstance(start_at, datetime) or start_at.tzinfo is None:
            raise InvalidOptionError(f"start_at must be a datetime with a time zone, not {shown(start_at)}")
        return max(0, time_ms(start_at) - time_ms(self._clock.now()))

    def _add_options(self, new: NewRun, options: RunOptions) -> None:
        now = time_ms(self._clock.now())
        if options.cron is not None:
            earliest = from_ms(now + new.delay_ms)
            new.delay_ms = time_ms(options.cron.after(earliest)) - now
        if options.memo or options.search:
            new.attributes = attributes_of(options.memo, options.search)
        start = now + new.delay_ms
        options = with_execution_end(options, start)
        new.expires_ms, new.expiry = options.expiry(start)
        if new.expires_ms is not None:
            new.expires_ms += new.delay_ms
        new.options = options.encode()

    def _start_events(self, workflow: str, messages: Any) -> list[StartEvent]:
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            raise InvalidOptionError(f"messages must be a list of (topic, payload), not {shown(messages)}")
        start_events = []
        for message in messages:
            if not isinstance(message, tuple | list) or len(message) != 2:
                raise InvalidOptionError(
                    f"messages must be a list of (topic, payload); {shown(message)} is not such a pair"
                )
            topic, payload = message
            names.check_event_type(topic, self._limits)
            start_events.append(StartEvent(topic, self._checked_payload(workflow, topic, payload)))
        return start_events

    # --- events

    def new_event(
        self,
        workflow: str,
        instance_id: str,
        type: str,
        payload: Any = None,
        *,
        id: str | None = None,
        recorded: bool = False,
    ) -> NewEvent:
        """An event for a run. ``recorded``: the event was sent before a replay, so its payload is not checked again."""
        names.check_event_type(type, self._limits)
        if id is not None and (not isinstance(id, str) or not 0 < len(id) <= 200):
            raise InvalidOptionError(f"the id of an event must be 1 to 200 characters of text, not {id!r}")
        instance_id = names.check_instance_id(instance_id, self._limits)
        data = self.payload(payload) if recorded else self._checked_payload(workflow, type, payload)
        return NewEvent(workflow, instance_id, type, data, dedup=id)

    def event_to(self, pid: Any, type: str, payload: Any = None, *, sender: str, recorded: bool = False) -> NewEvent:
        """An event from the run ``sender`` to the run ``pid``."""
        return replace(self.new_event(*self.address(pid), type, payload, recorded=recorded), sender=sender)

    def _checked_payload(self, workflow: str, type: str, payload: Any) -> bytes | None:
        """Encode a payload and check it against the workflow's declared type of the event."""
        data = self.payload(payload)
        declared = self._registry.events(workflow).get(type)
        return data if declared is None else checked_payload(workflow, declared, data)

    @property
    def limits(self) -> Limits:
        return self._limits

    def params(self, workflow: str, params: Any) -> bytes | None:
        """The encoded input of a run, checked against the workflow's annotation."""
        return self.definition(workflow).encode_params(params, self._limits)

    def start_params(self, workflow: str, params: Any) -> bytes | None:
        """The encoded input of a run that one start makes: a list of one item if the workflow has batches."""
        return self.definition(workflow).encode_start(params, self._limits)

    def result(self, value: Any) -> bytes:
        """A result of a step that is given by hand."""
        return codec.encode(value, what="result", limit=self._limits.result)

    def payload(self, payload: Any) -> bytes | None:
        if payload is None:
            return None
        return codec.encode(payload, what="payload", limit=self._limits.event_payload)

    def address(self, pid: Any) -> tuple[str, str]:
        """The workflow and the instance id of a pid."""
        if not isinstance(pid, str):
            raise InvalidInstanceIdError(f"a pid is text of the form workflow/instance_id, not {shown(pid)}")
        workflow, slash, instance_id = pid.partition("/")
        if not slash:
            raise InvalidInstanceIdError(f"{shown(pid)} is not a pid: a pid has the form workflow/instance_id")
        names.check_workflow_name(workflow, self._limits)
        return workflow, names.check_instance_id(instance_id, self._limits)

    def cancellation(self, reason: Any, deadline: Duration | None) -> tuple[bytes, int | None]:
        """The payload of a CANCEL event, and its deadline."""
        check_optional_text("reason", reason)
        deadline_ms = None if deadline is None else option_ms("deadline", deadline)
        return codec.encode({"reason": reason, "deadlineMs": deadline_ms}, what="reason"), deadline_ms

    def new_id(self) -> str:
        """32 random hexadecimal digits."""
        return self._runtime.random.bytes(16).hex()

    def _seed(self, workflow: str, instance_id: str) -> int:
        """The seed of a new run.

        It cannot be guessed from outside. With seeded randomness it depends on the pid, not on the order of starts.
        """
        digest = hashlib.sha256(self._root + f"{workflow}/{instance_id}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


def check_known(options: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in options.keys() - known:
        raise TypeError(f"unknown start option {name!r}; the options are {', '.join(sorted(known))}")


def with_execution_end(options: RunOptions, start: int) -> RunOptions:
    """The options with ``execution_end`` set, for an instance that starts or restarts at this time."""
    if options.execution_ms is None:
        return options
    return options.ending(start + options.execution_ms)


def attributes_of(memo: Mapping[str, Any] | None, search: Mapping[str, Any] | None) -> Attributes:
    """Attributes in the store's form; None leaves the stored ones unchanged."""
    return Attributes(
        memo=None if memo is None else codec.encode(dict(memo), what="memo"),
        search=None if search is None else codec.encode(dict(search), what="search"),
        terms=() if search is None else [Term(key, value) for key, value in attributes.terms_of(search)],
    )


def check_context(values: Any, limits: Limits) -> dict[str, Any]:
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InvalidOptionError(f"context must be a mapping with text as keys, not {shown(values)}")
    plain: dict[str, Any] = codec.plain(codec.encode(dict(values), what="context", limit=limits.params))
    return plain


def check_priority(priority: Any) -> int:
    if not is_whole_number(priority, -(2**31), 2**31):
        raise InvalidOptionError(f"priority must be an int (lower runs first), not {shown(priority)}")
    return priority


def check_summary(summary: Any) -> str | None:
    if summary is not None and (not isinstance(summary, str) or len(summary) > _MAX_SUMMARY_LENGTH):
        raise InvalidOptionError(
            f"summary must be text of up to {_MAX_SUMMARY_LENGTH} characters, not {shown(summary)}"
        )
    return summary
