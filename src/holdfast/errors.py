"""Every error Holdfast raises, in one tree, each with a stable ``code``.

::

    HoldfastError
    ├── DefinitionError                     the program is written wrong
    │   ├── WorkflowAlreadyRegisteredError  WORKFLOW_ALREADY_REGISTERED
    │   └── InvalidNameError                INVALID_NAME
    ├── InputError                          a call was given something it cannot take; nothing changed
    │   ├── InvalidInstanceIdError          INVALID_INSTANCE_ID
    │   ├── InvalidEventTypeError           INVALID_EVENT_TYPE
    │   ├── InvalidDurationError            INVALID_DURATION
    │   ├── InvalidCursorError              INVALID_CURSOR
    │   ├── InvalidOptionError              INVALID_OPTION
    │   ├── InvalidLogError                 INVALID_LOG
    │   ├── InvalidUrlError                 INVALID_URL
    │   ├── SignatureError                  INVALID_SIGNATURE
    │   ├── NotSerializableError            NOT_SERIALIZABLE
    │   │   └── ResultInvalidError          RESULT_INVALID
    │   ├── PayloadTooLargeError            PAYLOAD_TOO_LARGE
    │   ├── ParamsInvalidError              WORKFLOW_PARAMS_INVALID
    │   └── EventInvalidError               EVENT_INVALID
    ├── StateError                          the run exists, or not, in a state that forbids the call
    │   ├── WorkflowNotFoundError           WORKFLOW_NOT_FOUND
    │   ├── InstanceNotFoundError           INSTANCE_NOT_FOUND
    │   ├── InstanceExistsError             INSTANCE_ID_ALREADY_EXISTS
    │   ├── InstanceTerminalError           INSTANCE_TERMINAL
    │   ├── AppClosedError                  APP_CLOSED
    │   └── LeaseLostError                  LEASE_LOST
    ├── RunError                            what ``Handle.result()`` raises
    │   ├── RunFailedError                  RUN_FAILED
    │   ├── RunTerminatedError              RUN_TERMINATED
    │   └── RunCancelledError               RUN_CANCELLED
    ├── Rejected                            REJECTED: what was asked of a run was refused by its code
    ├── DeliveryError                       DELIVERY_FAILED: an outbound event did not arrive
    ├── WorkflowCodeError                   raised inside workflow code; the context used inside a step
    │   ├── IOInWorkflowError               IO_IN_WORKFLOW
    │   ├── DuplicateStepError              DUPLICATE_STEP_KEY
    │   ├── StepTypeMismatchError           STEP_TYPE_MISMATCH
    │   ├── MaxStepsExceededError           MAX_STEPS_EXCEEDED
    │   ├── NonDeterministicError           NON_DETERMINISTIC
    │   ├── WorkflowStuckError              WORKFLOW_STUCK
    │   ├── ChannelClosed                   CHANNEL_CLOSED
    │   ├── VersionUnsupportedError         VERSION_UNSUPPORTED
    │   ├── NotAskedError                   NOT_ASKED
    │   ├── LinkDownError                   LINK_DOWN
    │   ├── RunTimeoutError                 RUN_TIMEOUT
    │   └── WaitForEventTimeoutError        WAIT_FOR_EVENT_TIMEOUT
    ├── WorkflowError                       base of users' own structured errors
    │   ├── NonRetryableError               NON_RETRYABLE
    │   └── StepError                       STEP_FAILED
    │       ├── StepTimeoutError            STEP_TIMEOUT
    │       ├── StepMaxAttemptsExceeded     STEP_MAX_ATTEMPTS_EXCEEDED
    │       ├── UniqueConstraintError       STEP_UNIQUE_CONSTRAINT_VIOLATION
    │       └── ChildError                  CHILD_FAILED
    └── StoreError                          the database
        ├── StoreBusyError                  STORE_BUSY
        ├── StoreUnavailableError           STORE_UNAVAILABLE
        ├── StoreReadOnlyError              STORE_READ_ONLY
        ├── StoreFullError                  STORE_FULL
        ├── StoreCorruptError               STORE_CORRUPT
        ├── NotADatabaseError               NOT_A_DATABASE
        └── SchemaVersionError              SCHEMA_VERSION

Control flow of the engine (a run that is dropped, a worker that stops) is not here: it derives from
``BaseException`` and never reaches user code's ``except Exception``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


class HoldfastError(Exception):
    """Base of every error of this library; ``code`` is stable and safe to switch on."""

    code: ClassVar[str] = "HOLDFAST_ERROR"

    @property
    def message(self) -> str:
        return str(self)


class DefinitionError(HoldfastError):
    code = "INVALID_DEFINITION"


class WorkflowAlreadyRegisteredError(DefinitionError):
    code = "WORKFLOW_ALREADY_REGISTERED"


class InvalidNameError(DefinitionError, ValueError):
    code = "INVALID_NAME"


class InputError(HoldfastError, ValueError):
    code = "INVALID_INPUT"


class InvalidInstanceIdError(InputError):
    code = "INVALID_INSTANCE_ID"


class InvalidEventTypeError(InputError):
    code = "INVALID_EVENT_TYPE"


class InvalidDurationError(InputError):
    code = "INVALID_DURATION"


class InvalidCursorError(InputError):
    code = "INVALID_CURSOR"


class InvalidOptionError(InputError):
    code = "INVALID_OPTION"


class InvalidLogError(InputError):
    code = "INVALID_LOG"


class InvalidUrlError(InputError):
    code = "INVALID_URL"


class SignatureError(InputError):
    """A webhook was not signed with the secret, or too long ago."""

    code = "INVALID_SIGNATURE"


class NotSerializableError(InputError, TypeError):
    """A value cannot be stored as JSON. Never retried: the same code would return the same value."""

    code = "NOT_SERIALIZABLE"


class ResultInvalidError(NotSerializableError):
    """The result of a workflow, a step or a node does not fit the return annotation of its function.

    Never retried: a run that ended with it, or a step, has failed.
    """

    code = "RESULT_INVALID"


class PayloadTooLargeError(InputError):
    code = "PAYLOAD_TOO_LARGE"


class ParamsInvalidError(InputError):
    """The input does not fit the workflow's annotation; ``issues`` has one entry per field."""

    code = "WORKFLOW_PARAMS_INVALID"

    def __init__(self, message: str, issues: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.issues = issues or []


class EventInvalidError(InputError):
    """The payload of an event does not fit its type.

    Raised where the event is sent, if the workflow declares the type with ``events=``; otherwise by the wait that
    receives the event. ``event`` is the event type, ``issues`` has one entry per field.
    """

    code = "EVENT_INVALID"

    def __init__(self, message: str, event: str = "", issues: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message, event, issues or [])  # the arguments rebuild the error after a replay
        self.event = event
        self.issues = issues or []

    def __str__(self) -> str:
        return str(self.args[0])


class StateError(HoldfastError):
    code = "INVALID_STATE"


class WorkflowNotFoundError(StateError):
    code = "WORKFLOW_NOT_FOUND"


class InstanceNotFoundError(StateError):
    code = "INSTANCE_NOT_FOUND"


class InstanceExistsError(StateError):
    code = "INSTANCE_ID_ALREADY_EXISTS"


class InstanceTerminalError(StateError):
    code = "INSTANCE_TERMINAL"


class AppClosedError(StateError):
    code = "APP_CLOSED"


class LeaseLostError(StateError):
    """Another worker owns the task now; nothing of this turn was written."""

    code = "LEASE_LOST"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A stored error: the name of its class, its message, its traceback and the errors behind it.

    Two of them are equal if name and message are.
    """

    name: str
    message: str
    traceback: str | None = field(default=None, compare=False, repr=False)
    """The trimmed traceback with its chain, at most 16 KB; None if there is none."""
    causes: list[ErrorInfo] = field(default_factory=list, compare=False)
    """The exceptions of an exception group, and the ``__cause__``; each with its own causes."""


class RunError(HoldfastError):
    """A run ended without a result. ``error`` says why, where there is a reason."""

    code = "RUN_ERROR"

    def __init__(self, message: str, error: ErrorInfo) -> None:
        super().__init__(message)
        self.error = error


class RunFailedError(RunError):
    code = "RUN_FAILED"


class RunTerminatedError(RunError):
    code = "RUN_TERMINATED"


class RunCancelledError(RunError):
    code = "RUN_CANCELLED"


class Rejected(HoldfastError):  # noqa: N818  (reads like what happened)
    """The run that was asked answered with ``msg.reject(reason)``; ``reason`` is what it gave."""

    code = "REJECTED"

    def __init__(self, message: str, reason: Any = None) -> None:
        super().__init__(message)
        self.reason = reason


class DeliveryError(HoldfastError):
    """An outbound event did not arrive; ``status`` is what was answered, if anything was."""

    code = "DELIVERY_FAILED"

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class WorkflowCodeError(HoldfastError):
    code = "WORKFLOW_CODE_ERROR"


class IOInWorkflowError(WorkflowCodeError, RuntimeError):
    code = "IO_IN_WORKFLOW"


class DuplicateStepError(WorkflowCodeError):
    code = "DUPLICATE_STEP_KEY"


class StepTypeMismatchError(WorkflowCodeError):
    code = "STEP_TYPE_MISMATCH"


class MaxStepsExceededError(WorkflowCodeError):
    code = "MAX_STEPS_EXCEEDED"


class NonDeterministicError(WorkflowCodeError):
    """The recorded history and the code do not fit; the run pauses until they do."""

    code = "NON_DETERMINISTIC"


class WorkflowStuckError(WorkflowCodeError):
    """Workflow code span without ever waiting for anything outside itself."""

    code = "WORKFLOW_STUCK"


class VersionUnsupportedError(WorkflowCodeError):
    """The run goes by a version of the code that this code does not support any more, or not yet."""

    code = "VERSION_UNSUPPORTED"


class ChannelClosed(WorkflowCodeError):  # noqa: N818  (reads like what happened)
    code = "CHANNEL_CLOSED"


class NotAskedError(WorkflowCodeError):
    """A message was answered whose sender does not wait for an answer, or has got one."""

    code = "NOT_ASKED"


class LinkDownError(WorkflowCodeError):
    """A run that this one is linked to did not end well."""

    code = "LINK_DOWN"


class RunTimeoutError(WorkflowCodeError, TimeoutError):
    """The run, or its instance as a whole, took longer than it was allowed to."""

    code = "RUN_TIMEOUT"


class WaitForEventTimeoutError(WorkflowCodeError, TimeoutError):
    code = "WAIT_FOR_EVENT_TIMEOUT"


class WorkflowError(HoldfastError):
    """Base for users' own structured errors: ``kind``, ``retryable`` and ``details`` survive the store."""

    code = "WORKFLOW_ERROR"

    def __init__(
        self,
        message: str = "",
        *,
        kind: str = "Internal",
        retryable: bool | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.details = details


class NonRetryableError(WorkflowError):
    """Stops the retries of a step. ``name`` replaces the class name wherever the error is shown."""

    code = "NON_RETRYABLE"

    def __init__(
        self,
        message: str = "",
        name: str | None = None,
        *,
        kind: str | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message, kind=kind or "Internal", retryable=False, details=details)
        self.name = name or type(self).__name__


class StepError(WorkflowError):
    """A step failed for good. The same content live and on every replay.

    ``traceback`` is the stored text of the last attempt's traceback.
    """

    code = "STEP_FAILED"

    def __init__(
        self,
        message: str,
        *,
        step: str,
        type: str,  # the word of the public contract
        kind: str = "Internal",
        retryable: bool | None = None,
        details: Any = None,
        attempts: int = 1,
        traceback: str | None = None,
    ) -> None:
        super().__init__(message, kind=kind, retryable=retryable, details=details)
        self.step = step
        self.type = type
        self.attempts = attempts
        self.traceback = traceback


class StepTimeoutError(StepError, TimeoutError):
    code = "STEP_TIMEOUT"


class StepMaxAttemptsExceeded(StepError):  # noqa: N818  (the name is part of the wire contract)
    code = "STEP_MAX_ATTEMPTS_EXCEEDED"


class UniqueConstraintError(StepError):
    code = "STEP_UNIQUE_CONSTRAINT_VIOLATION"


class ChildError(StepError):
    """A child did not end well. ``pid`` says which, ``status`` how; its causes are on ``__cause__``."""

    code = "CHILD_FAILED"

    def __init__(self, message: str, *, pid: str = "", status: str = "errored", **rest: Any) -> None:
        super().__init__(message, **rest)
        self.pid = pid
        self.status = status


class StoreError(HoldfastError):
    """The database refused or failed. What was acknowledged before is still there."""

    code = "STORE_ERROR"


class StoreBusyError(StoreError):
    code = "STORE_BUSY"


class StoreUnavailableError(StoreError):
    code = "STORE_UNAVAILABLE"


class StoreReadOnlyError(StoreError):
    code = "STORE_READ_ONLY"


class StoreFullError(StoreError):
    code = "STORE_FULL"


class StoreCorruptError(StoreError):
    code = "STORE_CORRUPT"


class NotADatabaseError(StoreError):
    code = "NOT_A_DATABASE"


class SchemaVersionError(StoreError):
    code = "SCHEMA_VERSION"
