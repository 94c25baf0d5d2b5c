"""The stored form of exceptions, and the exceptions that are rebuilt from it.

A live failure is converted to the stored form and back as a replayed one is, so workflow code sees the same content
both times.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from holdfast import errors
from holdfast.core import codec, envelope, tracebacks
from holdfast.core.lowering import SURROGATE_PAIR
from holdfast.errors import (
    ChildError,
    DamagedRunError,
    ErrorInfo,
    InputError,
    NonRetryableError,
    NotSerializableError,
    PayloadError,
    PayloadTooLargeError,
    StepError,
    StepMaxAttemptsExceeded,
    StepTimeoutError,
    UniqueConstraintError,
    WorkflowCodeError,
    WorkflowError,
)

_MAX_MESSAGE = 16_384
_MAX_DETAILS = 256 * 1024
_MAX_CAUSE_DEPTH = 8
_MAX_GROUP = 20
"""Exceptions of a group that are stored; half as many for each level of nesting. The group's message has the count."""
E = TypeVar("E", bound=BaseException)

_STEP_ERRORS = {c.__name__: c for c in (StepTimeoutError, StepMaxAttemptsExceeded, UniqueConstraintError)}


@dataclass(frozen=True, slots=True)
class Failure:
    """The storable content of an exception."""

    name: str
    message: str
    kind: str = "Internal"
    retryable: bool | None = None
    details: Any = None
    args: list[Any] | None = None
    lineage: tuple[str, ...] = ()
    """Names of the exception's classes, the most specific first. ``non_retryable`` and ``raises`` match these names."""
    cause: Failure | None = None
    exceptions: tuple[Failure, ...] = ()
    """The exceptions of an exception group."""
    traceback: str | None = None
    """Trimmed text. The text of the outermost failure includes its causes, so the causes have no text of their own."""
    steps: tuple[str, ...] = ()
    """For the error of a run: keys of the failed steps and waits, and pids of the failed children, that caused it."""

    @property
    def info(self) -> ErrorInfo:
        return ErrorInfo(self.name, self.message, self.traceback, [cause.info for cause in self._causes()])

    def _causes(self) -> list[Failure]:
        cause = self.cause
        if cause is not None and (cause.name, cause.message) == (self.name, self.message):
            cause = cause.cause  # the StepError below an exception that was rebuilt in its own class
        return [*self.exceptions, *([] if cause is None else [cause])]

    def encode(self) -> bytes:
        return codec.encode(self.content(), what="error")

    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = {"name": self.name, "message": self.message, "kind": self.kind}
        extra = {
            "retryable": self.retryable,
            "details": self.details,
            "args": self.args,
            "lineage": self.lineage or None,
            "cause": None if self.cause is None else self.cause.content(),
            "exceptions": [inner.content() for inner in self.exceptions] or None,
            "traceback": self.traceback,
            "steps": self.steps or None,
        }
        return content | {k: v for k, v in extra.items() if v is not None}

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        content = codec.plain_object(data, "error")
        try:
            return cls.from_content(content)
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedRunError(f"the stored error has another form than expected: {error!r}") from error

    @classmethod
    def displayed(cls, data: bytes) -> Failure:
        """As ``decode``, for display: of an error that this process cannot read only the name is known."""
        try:
            return cls.decode(data)
        except PayloadError as error:
            return cls(envelope.error_name(data) or "Unknown", f"(not readable here: {error})")

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Failure:
        cause = content.get("cause")
        return cls(
            name=content["name"],
            message=content["message"],
            kind=content.get("kind", "Internal"),
            retryable=content.get("retryable"),
            details=content.get("details"),
            args=content.get("args"),
            lineage=tuple(content.get("lineage", ())),
            cause=None if cause is None else cls.from_content(cause),
            exceptions=tuple(map(cls.from_content, content.get("exceptions", ()))),
            traceback=content.get("traceback"),
            steps=tuple(content.get("steps", ())),
        )

    @classmethod
    def of_run(cls, error: BaseException) -> Failure:
        """Convert the exception that ended a run, with the steps that caused it."""
        failure = cls.of(error)
        try:
            return replace(failure, steps=tuple(dict.fromkeys(_failed_steps(error, 0))))
        except Exception:  # an exception class of a user whose attributes raise
            return failure

    @classmethod
    def of(cls, error: BaseException, depth: int = 0) -> Failure:
        """Convert an exception.

        This method never raises. If ``str()`` or an attribute of the exception fails, the message states this.
        """
        try:
            return cls._of(error, depth)
        except Exception as problem:  # an exception class of a user whose attributes raise
            name, found = type(error).__name__, type(problem).__name__
            return cls(_text(name), f"<{_text(name)} whose content cannot be read: {found}>", lineage=_lineage(error))

    @classmethod
    def _of(cls, error: BaseException, depth: int) -> Failure:
        cause = None
        if error.__cause__ is not None and depth < _MAX_CAUSE_DEPTH:
            cause = cls.of(error.__cause__, depth + 1)
        traceback = _text(tracebacks.trimmed_traceback(error)) or None if depth == 0 else None
        record = _attached_failure(error)
        if record is not None and type(error) is WorkflowError:
            return replace(record, cause=cause, traceback=traceback)
        max_bytes = _MAX_DETAILS if depth == 0 else _MAX_DETAILS // 16
        if isinstance(error, StepError):
            return cls(
                error.type, _message(error), error.kind, error.retryable, _storable(error.details, max_bytes),
                None if record is None else record.args, cause=cause, traceback=traceback,
            )  # fmt: skip
        exceptions: tuple[Failure, ...] = ()
        if isinstance(error, BaseExceptionGroup) and depth < _MAX_CAUSE_DEPTH:
            exceptions = tuple(cls.of(inner, depth + 1) for inner in error.exceptions[: _MAX_GROUP >> depth])
        return cls(
            name=_text(getattr(error, "name", None) if isinstance(error, NonRetryableError) else None)
            or _text(type(error).__name__),
            message=_with_first_cause(_message(error), exceptions),
            kind=_text(getattr(error, "kind", None) if isinstance(error, WorkflowError) else None) or "Internal",
            retryable=_retryable(error),
            details=_storable(getattr(error, "details", None), max_bytes) if isinstance(error, WorkflowError) else None,
            args=_storable(_args(error), max_bytes),
            lineage=_lineage(error),
            cause=cause,
            exceptions=exceptions,
            traceback=traceback,
        )

    def as_step_error(self, step: str, attempts: int) -> StepError:
        error = _STEP_ERRORS.get(self.name, StepError)(
            self.message,
            step=step,
            type=self.name,
            kind=self.kind,
            retryable=self.retryable,
            details=self.details,
            attempts=attempts,
            traceback=self.traceback,
        )
        return self._attached_to(error)

    def as_exception(self, step: str, attempts: int, raises: Sequence[type[BaseException]]) -> BaseException:
        """The error that workflow code receives: of its own class if that is known here, else a StepError."""
        step_error = self.as_step_error(step, attempts)
        if type(step_error) is not StepError:
            return step_error
        original = self._original(raises)
        if original is None:
            if self.exceptions and step_error.__cause__ is None:
                step_error.__cause__ = _rebuild_group(ExceptionGroup, self, raises)
            return step_error
        original.__cause__ = step_error
        return original

    def as_child_error(self, pid: str, status: str) -> ChildError:
        """The error that a parent receives for a child that did not complete."""
        error = ChildError(
            self.message,
            pid=pid,
            status=status,
            step=pid,
            type=self.name,
            kind=self.kind,
            retryable=self.retryable,
            details=self.details,
            traceback=self.traceback,
        )
        return self._attached_to(error)

    def as_cause(self, raises: Sequence[type[BaseException]] = ()) -> BaseException:
        """An instance of the error's own class if that is known here, else a WorkflowError with the same content."""
        error = self._original(raises) or _as_workflow_error(self)
        error.__cause__ = None if self.cause is None else self.cause.as_cause(raises)
        return error

    def as_noted_exception(self, source: str) -> BaseException:
        """The error with its stored traceback as a note, for terminals and logs. ``source`` names the run or step."""
        if self.traceback is None:
            return self.as_cause()
        # The chain and the exceptions of a group are left out: the text of the traceback has them.
        original = None if self.exceptions else self._original(())
        error = original if original is not None and str(original) == self.message else _as_workflow_error(self)
        error.add_note(f"Stored with {source}:\n{self.traceback}")
        return error

    def _attached_to(self, error: E) -> E:
        """Attach the failure and its cause to an exception that was built from it."""
        _attach_failure(error, self)
        error.__cause__ = None if self.cause is None else self.cause.as_cause()
        return error

    def _original(self, raises: Sequence[type[BaseException]]) -> BaseException | None:
        if "NonRetryableError" in self.lineage and not _class_named(self.lineage, raises):
            return NonRetryableError(self.message, self.name, kind=self.kind, details=self.details)
        cls = _class_named(self.lineage, raises) or _builtin_or_input_error(self.name)
        if cls is not None and issubclass(cls, BaseExceptionGroup):
            return _rebuild_group(cls, self, raises)
        return None if cls is None else _rebuild(cls, self)


def note_step(error: E, key: str) -> E:
    """Note the key of the wait that raises an exception, so that a retry of the run can repeat the wait."""
    vars(error)["_holdfast_step"] = key
    return error


def _failed_steps(error: BaseException, depth: int) -> Iterator[str]:
    """Keys of the steps whose failures an exception reports: its own, else those of its group or of its cause.

    An exception that code raised while it handled another one was caused by it, unless it was raised ``from None``.
    """
    own = vars(error).get("_holdfast_step")
    if isinstance(error, StepError):
        own = error.pid if isinstance(error, ChildError) else error.step
    if own is not None:
        yield own
    elif depth < _MAX_CAUSE_DEPTH:
        causes: Sequence[BaseException] = ()
        if isinstance(error, BaseExceptionGroup):
            causes = error.exceptions
        if error.__cause__ is not None:
            causes = [*causes, error.__cause__]
        elif error.__context__ is not None and not error.__suppress_context__ and not causes:
            causes = [error.__context__]
        for cause in causes:
            yield from _failed_steps(cause, depth + 1)


def timeout(step: str, limit: str, stack: str | None = None) -> Failure:
    """The failure of an attempt that timed out. ``stack``: the stack of the step at that time."""
    message = f"step {step!r} took longer than {limit}"
    traceback = stack and f"Stack when the time was up (most recent call last):\n{stack}\nStepTimeoutError: {message}"
    return Failure("StepTimeoutError", message, kind="Timeout", traceback=traceback)


def max_attempts_exceeded(step: str, attempts: int) -> Failure:
    return Failure(
        "StepMaxAttemptsExceeded",
        f"step {step!r} was started {attempts} times and never ended (its worker died, or the code cancelled it); "
        "it is not started again",
        retryable=False,
    )


def worker_lost(step: str) -> Failure:
    return Failure("WorkerLost", f"the worker that ran step {step!r} died or lost its lease", retryable=True)


def unique_violation(message: str) -> Failure:
    return Failure("UniqueConstraintError", message, kind="UniqueConstraint", retryable=False)


def cancelled(step: str) -> Failure:
    return Failure("CancelledError", f"workflow code cancelled {step!r}", retryable=False)


def _as_workflow_error(failure: Failure) -> WorkflowError:
    """An exception for a failure whose class is not known in this process."""
    error = WorkflowError(
        f"{failure.name}: {failure.message}", kind=failure.kind, retryable=failure.retryable, details=failure.details
    )
    _attach_failure(error, failure)
    return error


def _attach_failure(error: BaseException, failure: Failure) -> None:
    """Attach the failure that an exception was built from. Storing the exception again then gives the same content."""
    vars(error)["_holdfast_record"] = failure


def _attached_failure(error: BaseException) -> Failure | None:
    record = vars(error).get("_holdfast_record")
    return record if isinstance(record, Failure) else None


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = f"<{type(error).__name__} whose message cannot be shown>"
    return _text(text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…")


def _text(value: object) -> str:
    """Text that JSON can hold: two surrogates that form a pair become the character that they encode."""
    text = "" if value is None else str(value)
    if text.isascii():
        return text
    return SURROGATE_PAIR.sub(lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)


def _lineage(error: BaseException) -> tuple[str, ...]:
    return tuple(_text(c.__name__) for c in type(error).__mro__ if c not in (object, BaseException))


def _with_first_cause(message: str, exceptions: Sequence[Failure]) -> str:
    """Append the first exception that is not a group to the message of a group, which does not state the cause."""
    if not exceptions:
        return message
    first = exceptions[0]
    while first.exceptions:
        first = first.exceptions[0]
    return f"{message}: {first.name}: {first.message}"


def _args(error: BaseException) -> list[Any]:
    """Arguments for rebuilding the exception. The exceptions of a group are stored separately."""
    return [error.message] if isinstance(error, BaseExceptionGroup) else list(error.args)


def _retryable(error: BaseException) -> bool | None:
    if isinstance(error, WorkflowError):
        retryable = getattr(error, "retryable", None)
        return None if retryable is None else bool(retryable)
    # Wrong arguments, or wrong use of workflow code: the same call would be refused again.
    return False if isinstance(error, InputError) or type(error) is WorkflowCodeError else None


def _storable(value: Any, max_bytes: int) -> Any:
    """The value as it is read back from the store, or None if it cannot be stored."""
    try:
        return codec.plain(codec.encode(value, what="error", limit=max_bytes))
    except (NotSerializableError, PayloadTooLargeError):
        return None


def _class_named(lineage: Sequence[str], raises: Sequence[type[BaseException]]) -> type[BaseException] | None:
    """The most specific class of ``lineage`` among the declared classes and their subclasses in this process."""
    by_name = {c.__name__: c for declared in raises for c in (declared, *_subclasses(declared))}
    return next((by_name[name] for name in lineage if name in by_name), None)


def _subclasses(cls: type[BaseException]) -> list[type[BaseException]]:
    direct = cls.__subclasses__()
    return [*direct, *(indirect for c in direct for indirect in _subclasses(c))]


def _builtin_or_input_error(name: str) -> type[BaseException] | None:
    builtin = getattr(builtins, name, None)
    if isinstance(builtin, type) and issubclass(builtin, Exception):
        return builtin
    own = getattr(errors, name, None)
    return own if isinstance(own, type) and issubclass(own, InputError) else None


def _rebuild_group(
    cls: type[BaseExceptionGroup[Any]], failure: Failure, raises: Sequence[type[BaseException]]
) -> BaseException | None:
    """Rebuild a group with its exceptions. None: the class does not accept them."""
    try:
        return cls(failure.args[0] if failure.args else "", [inner.as_cause(raises) for inner in failure.exceptions])
    except Exception:
        return None


def _rebuild(cls: type[BaseException], failure: Failure) -> BaseException | None:
    """Rebuild an instance with the recorded content.

    If the constructor raises, or gives the exception another message, ``__init__`` is not called.
    """
    if issubclass(cls, WorkflowError) and cls.__init__ is WorkflowError.__init__:
        return cls(failure.message, kind=failure.kind, retryable=failure.retryable, details=failure.details)
    args = failure.args if failure.args is not None else [failure.message]
    try:
        error = cls(*args)
    except Exception:
        if cls.__module__ == "builtins":
            return None
        error = None
    if error is None or str(error) != failure.message:  # the constructor takes other arguments than it passes on
        error = cls.__new__(cls, *args)
        error.args = tuple(args)
    if isinstance(error, WorkflowError):
        error.kind, error.retryable, error.details = failure.kind, failure.retryable, failure.details
    return error
