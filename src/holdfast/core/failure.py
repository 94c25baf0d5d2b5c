"""Errors as data: what is stored of an exception, and the exception that is raised from it again.

A live failure goes through the same form as a replayed one, so the code sees the same content both times.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast import errors
from holdfast.core import codec, traces
from holdfast.errors import (
    ChildError,
    ErrorInfo,
    InputError,
    NonRetryableError,
    NotSerializableError,
    PayloadTooLargeError,
    StepError,
    StepMaxAttemptsExceeded,
    StepTimeoutError,
    UniqueConstraintError,
    WorkflowCodeError,
    WorkflowError,
)

_LONGEST_MESSAGE = 16_384
_LARGEST_DETAILS = 256 * 1024
_DEEPEST_CAUSE = 8
_LARGEST_GROUP = 20
"""Exceptions of a group that are kept, half as many in a group inside it; its message says how many there were."""
_OWN = {c.__name__: c for c in (StepTimeoutError, StepMaxAttemptsExceeded, UniqueConstraintError)}


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception reduced to what can be stored and shown."""

    name: str
    message: str
    kind: str = "Internal"
    retryable: bool | None = None
    details: Any = None
    args: list[Any] | None = None
    lineage: tuple[str, ...] = ()
    """Names of its classes, the most specific first: what ``non_retryable`` and ``raises`` match."""
    cause: Failure | None = None
    exceptions: tuple[Failure, ...] = ()
    """Of an exception group: its exceptions."""
    traceback: str | None = None
    """Trimmed text. The text of the outermost failure covers its causes, which have none."""

    @property
    def info(self) -> ErrorInfo:
        return ErrorInfo(self.name, self.message, self.traceback, [one.info for one in self._causes()])

    def _causes(self) -> list[Failure]:
        cause = self.cause
        if cause is not None and (cause.name, cause.message) == (self.name, self.message):
            cause = cause.cause  # the StepError of an exception that was raised again as itself
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
            "exceptions": [one.content() for one in self.exceptions] or None,
            "traceback": self.traceback,
        }
        return content | {k: v for k, v in extra.items() if v is not None}

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        return cls.from_content(codec.plain(data))

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
        )

    @classmethod
    def of(cls, error: BaseException, depth: int = 0) -> Failure:
        """What remains of an exception.

        Never raises: an exception that cannot even be shown has a message saying so.
        """
        cause = None
        if error.__cause__ is not None and depth < _DEEPEST_CAUSE:
            cause = cls.of(error.__cause__, depth + 1)
        traceback = traces.trimmed(error) if depth == 0 else None
        record = _record_of(error)
        if record is not None and type(error) is WorkflowError:
            return replace(record, cause=cause, traceback=traceback)
        largest = _LARGEST_DETAILS if depth == 0 else _LARGEST_DETAILS // 16
        if isinstance(error, StepError):
            return cls(
                error.type, _message(error), error.kind, error.retryable, _storable(error.details, largest),
                None if record is None else record.args, cause=cause, traceback=traceback,
            )  # fmt: skip
        exceptions: tuple[Failure, ...] = ()
        if isinstance(error, BaseExceptionGroup) and depth < _DEEPEST_CAUSE:
            exceptions = tuple(cls.of(one, depth + 1) for one in error.exceptions[: _LARGEST_GROUP >> depth])
        return cls(
            name=error.name if isinstance(error, NonRetryableError) else type(error).__name__,
            message=_with_first_leaf(_message(error), exceptions),
            kind=error.kind if isinstance(error, WorkflowError) else "Internal",
            retryable=_retryable(error),
            details=_storable(error.details, largest) if isinstance(error, WorkflowError) else None,
            args=_storable(_args(error), largest),
            lineage=tuple(c.__name__ for c in type(error).__mro__ if c not in (object, BaseException)),
            cause=cause,
            exceptions=exceptions,
            traceback=traceback,
        )

    def as_step_error(self, step: str, attempts: int) -> StepError:
        error = _OWN.get(self.name, StepError)(
            self.message,
            step=step,
            type=self.name,
            kind=self.kind,
            retryable=self.retryable,
            details=self.details,
            attempts=attempts,
            traceback=self.traceback,
        )
        _keep_record(error, self)
        error.__cause__ = None if self.cause is None else self.cause.as_cause()
        return error

    def as_exception(self, step: str, attempts: int, raises: Sequence[type[BaseException]]) -> BaseException:
        """The error as workflow code sees it: as itself where its class is known here, else a StepError."""
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
        """The end of a child as its parent sees it."""
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
        _keep_record(error, self)
        error.__cause__ = None if self.cause is None else self.cause.as_cause()
        return error

    def as_cause(self, raises: Sequence[type[BaseException]] = ()) -> BaseException:
        """Itself where its class is known here, else an error with the same content."""
        error = self._original(raises) or _stand_in(self)
        error.__cause__ = None if self.cause is None else self.cause.as_cause(raises)
        return error

    def as_evidence(self, source: str) -> BaseException:
        """The error with its stored traceback as a note: what a terminal or a log shows of a failed run."""
        if self.traceback is None:
            return self.as_cause()
        # Without its chain and its exceptions, which the text has.
        original = None if self.exceptions else self._original(())
        error = original if original is not None and str(original) == self.message else _stand_in(self)
        error.add_note(f"Stored with {source}:\n{self.traceback}")
        return error

    def _original(self, raises: Sequence[type[BaseException]]) -> BaseException | None:
        if "NonRetryableError" in self.lineage and not _class_named(self.lineage, raises):
            return NonRetryableError(self.message, self.name, kind=self.kind, details=self.details)
        found = _class_named(self.lineage, raises) or _builtin_or_own(self.name)
        if found is not None and issubclass(found, BaseExceptionGroup):
            return _rebuild_group(found, self, raises)
        return None if found is None else _rebuild(found, self)


def timeout(step: str, text: str, stack: str | None = None) -> Failure:
    """``stack``: where the step was when its time was up."""
    message = f"step {step!r} took longer than {text}"
    traceback = stack and f"Stack when the time was up (most recent call last):\n{stack}\nStepTimeoutError: {message}"
    return Failure("StepTimeoutError", message, kind="Timeout", traceback=traceback)


def attempts_used_up(step: str, attempts: int) -> Failure:
    return Failure(
        "StepMaxAttemptsExceeded",
        f"step {step!r} was started {attempts} times and never ended (its worker died, or the code cancelled it); "
        "it is not started again",
        retryable=False,
    )


def lost(step: str) -> Failure:
    return Failure("WorkerLost", f"the worker that ran step {step!r} died or lost its lease", retryable=True)


def unique_violation(message: str) -> Failure:
    return Failure("UniqueConstraintError", message, kind="UniqueConstraint", retryable=False)


def cancelled(step: str) -> Failure:
    return Failure("CancelledError", f"workflow code cancelled {step!r}", retryable=False)


def _stand_in(failure: Failure) -> WorkflowError:
    """An exception for a failure whose class is not known here."""
    error = WorkflowError(
        f"{failure.name}: {failure.message}", kind=failure.kind, retryable=failure.retryable, details=failure.details
    )
    _keep_record(error, failure)
    return error


def _keep_record(error: BaseException, failure: Failure) -> None:
    """Keep the failure that an exception was made from, so that storing the exception again gives the same content."""
    vars(error)["_holdfast_record"] = failure


def _record_of(error: BaseException) -> Failure | None:
    record = vars(error).get("_holdfast_record")
    return record if isinstance(record, Failure) else None


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = f"<{type(error).__name__} whose message cannot be shown>"
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"


def _with_first_leaf(message: str, exceptions: Sequence[Failure]) -> str:
    """The message of an exception group, which does not say what went wrong, with the first exception that does."""
    if not exceptions:
        return message
    first = exceptions[0]
    while first.exceptions:
        first = first.exceptions[0]
    return f"{message}: {first.name}: {first.message}"


def _args(error: BaseException) -> list[Any]:
    """Arguments to make the exception from again. The exceptions of a group are stored by themselves."""
    return [error.message] if isinstance(error, BaseExceptionGroup) else list(error.args)


def _retryable(error: BaseException) -> bool | None:
    if isinstance(error, WorkflowError):
        return error.retryable
    # Misused workflow code: the same call would be refused again.
    return False if isinstance(error, InputError) or type(error) is WorkflowCodeError else None


def _storable(value: Any, largest: int) -> Any:
    """The value as it will be after the store, or None if it cannot be kept."""
    try:
        return codec.plain(codec.encode(value, what="error", limit=largest))
    except (NotSerializableError, PayloadTooLargeError):
        return None


def _class_named(lineage: Sequence[str], raises: Sequence[type[BaseException]]) -> type[BaseException] | None:
    """The declared class, or a subclass of it that is loaded here, which the error is an instance of."""
    by_name = {c.__name__: c for declared in raises for c in (declared, *_subclasses(declared))}
    return next((by_name[name] for name in lineage if name in by_name), None)


def _subclasses(cls: type[BaseException]) -> list[type[BaseException]]:
    direct = cls.__subclasses__()
    return [*direct, *(below for c in direct for below in _subclasses(c))]


def _builtin_or_own(name: str) -> type[BaseException] | None:
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    own = getattr(errors, name, None)
    return own if isinstance(own, type) and issubclass(own, InputError) else None


def _rebuild_group(
    cls: type[BaseExceptionGroup[Any]], failure: Failure, raises: Sequence[type[BaseException]]
) -> BaseException | None:
    """The group with its exceptions, or None if the class does not take them."""
    try:
        return cls(failure.args[0] if failure.args else "", [one.as_cause(raises) for one in failure.exceptions])
    except Exception:
        return None


def _rebuild(cls: type[BaseException], failure: Failure) -> BaseException | None:
    """An instance with the recorded content. A constructor with a shape of its own is gone round."""
    if issubclass(cls, WorkflowError) and cls.__init__ is WorkflowError.__init__:
        return cls(failure.message, kind=failure.kind, retryable=failure.retryable, details=failure.details)
    args = failure.args if failure.args is not None else [failure.message]
    try:
        error = cls(*args)
    except Exception:
        if cls.__module__ == "builtins":
            return None
        error = None
    if error is None or str(error) != failure.message:  # its constructor takes something else than it passes on
        error = cls.__new__(cls, *args)
        error.args = tuple(args)
    if isinstance(error, WorkflowError):
        error.kind, error.retryable, error.details = failure.kind, failure.retryable, failure.details
    return error
