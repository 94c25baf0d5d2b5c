"""Every error Holdfast raises, in one tree, each with a stable ``code``.

::

    HoldfastError
    ├── DefinitionError                     a definition of the program is invalid
    │   ├── WorkflowAlreadyRegisteredError  WORKFLOW_ALREADY_REGISTERED
    │   └── InvalidNameError                INVALID_NAME
    ├── InputError                          an argument of a call is invalid; nothing was changed
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
    ├── StateError                          the state of the run or the app does not allow the call
    │   ├── WorkflowNotFoundError           WORKFLOW_NOT_FOUND
    │   ├── InstanceNotFoundError           INSTANCE_NOT_FOUND
    │   ├── LimitNotFoundError              LIMIT_NOT_FOUND
    │   ├── LimitReachedError               LIMIT_REACHED
    │   ├── WorkerNotFoundError             WORKER_NOT_FOUND
    │   ├── InstanceExistsError             INSTANCE_ID_ALREADY_EXISTS
    │   ├── InstanceTerminalError           INSTANCE_TERMINAL
    │   ├── ScheduleNotFoundError           SCHEDULE_NOT_FOUND
    │   ├── ScheduleExistsError             SCHEDULE_EXISTS
    │   ├── AppClosedError                  APP_CLOSED
    │   ├── StreamFullError                 STREAM_FULL
    │   ├── StreamRateError                 STREAM_RATE
    │   └── LeaseLostError                  LEASE_LOST
    ├── DamagedRunError                     RUN_DAMAGED: the stored data of a run cannot be read
    │   └── PayloadError                    PAYLOAD_UNREADABLE: no key for a stored value, or the value is damaged
    ├── RunError                            raised by ``Handle.result()``
    │   ├── RunFailedError                  RUN_FAILED
    │   ├── RunTerminatedError              RUN_TERMINATED
    │   └── RunCancelledError               RUN_CANCELLED
    ├── MissingExtraError                   MISSING_EXTRA: an optional dependency is not installed
    ├── Rejected                            REJECTED: the code of a run rejected an ask
    ├── DeliveryError                       DELIVERY_FAILED: an outbound event was not delivered
    ├── WorkflowCodeError                   raised inside workflow code, or if a step uses the context
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
    ├── WorkflowError                       base class of users' own structured errors
    │   ├── NonRetryableError               NON_RETRYABLE
    │   └── StepError                       STEP_FAILED
    │       ├── StepTimeoutError            STEP_TIMEOUT
    │       ├── StepMaxAttemptsExceeded     STEP_MAX_ATTEMPTS_EXCEEDED
    │       ├── UniqueConstraintError       STEP_UNIQUE_CONSTRAINT_VIOLATION
    │       └── ChildError                  CHILD_FAILED
    └── StoreError                          the database failed or refused
        ├── StoreBusyError                  STORE_BUSY
        ├── StoreUnavailableError           STORE_UNAVAILABLE
        ├── StoreReadOnlyError              STORE_READ_ONLY
        ├── StoreFullError                  STORE_FULL
        ├── StoreCorruptError               STORE_CORRUPT
        ├── NotADatabaseError               NOT_A_DATABASE
        └── SchemaVersionError              SCHEMA_VERSION

Control flow of the engine (a machine that is closed, a turn that ends) is not in this tree: it derives from
``BaseException``, so that ``except Exception`` in user code does not catch it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


class HoldfastError(Exception):
    """Base class of every error of this library. ``code`` is stable, so programs may test it."""

    code: ClassVar[str] = "HOLDFAST_ERROR"

    def __init_subclass__(cls, *, code: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if code is not None:
            cls.code = code

    @property
    def message(self) -> str:
        return str(self)


class DefinitionError(HoldfastError, code="INVALID_DEFINITION"): ...


class WorkflowAlreadyRegisteredError(DefinitionError, code="WORKFLOW_ALREADY_REGISTERED"): ...


class InvalidNameError(DefinitionError, ValueError, code="INVALID_NAME"): ...


class InputError(HoldfastError, ValueError, code="INVALID_INPUT"): ...


class InvalidInstanceIdError(InputError, code="INVALID_INSTANCE_ID"): ...


class InvalidEventTypeError(InputError, code="INVALID_EVENT_TYPE"): ...


class InvalidDurationError(InputError, code="INVALID_DURATION"): ...


class InvalidCursorError(InputError, code="INVALID_CURSOR"): ...


class InvalidOptionError(InputError, code="INVALID_OPTION"): ...


class InvalidLogError(InputError, code="INVALID_LOG"): ...


class InvalidUrlError(InputError, code="INVALID_URL"): ...


class MissingExtraError(HoldfastError, ImportError, code="MISSING_EXTRA"):
    """An optional dependency is not installed; the message has the command that installs it."""


class SignatureError(InputError, code="INVALID_SIGNATURE"):
    """A webhook was not signed with the secret, or was signed too long ago."""


class NotSerializableError(InputError, TypeError, code="NOT_SERIALIZABLE"):
    """A value cannot be stored as JSON. Never retried, because the same code would return the same value."""


class ResultInvalidError(NotSerializableError, code="RESULT_INVALID"):
    """The result of a workflow, step or node does not fit the return annotation of its function. Never retried."""


class PayloadTooLargeError(InputError, code="PAYLOAD_TOO_LARGE"): ...


class ParamsInvalidError(InputError, code="WORKFLOW_PARAMS_INVALID"):
    """The input does not fit the workflow's annotation; ``issues`` has one entry per field."""

    def __init__(self, message: str, issues: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.issues = issues or []


class EventInvalidError(InputError, code="EVENT_INVALID"):
    """The payload of an event does not fit its type.

    Raised by the call that sends the event if the workflow declares the type with ``events=``, otherwise by the wait
    that receives the event. ``event`` is the event type, ``issues`` has one entry per field.
    """

    def __init__(self, message: str, event: str = "", issues: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message, event, issues or [])  # a replay rebuilds the error from these arguments
        self.event = event
        self.issues = issues or []

    def __str__(self) -> str:
        return str(self.args[0])


class StateError(HoldfastError, code="INVALID_STATE"): ...


class WorkflowNotFoundError(StateError, code="WORKFLOW_NOT_FOUND"): ...


class InstanceNotFoundError(StateError, code="INSTANCE_NOT_FOUND"): ...


class LimitNotFoundError(StateError, code="LIMIT_NOT_FOUND"): ...


class LimitReachedError(StateError, code="LIMIT_REACHED"):
    """A start with ``on_limit="reject"`` found a limit without room."""


class InstanceExistsError(StateError, code="INSTANCE_ID_ALREADY_EXISTS"): ...


class WorkerNotFoundError(StateError, code="WORKER_NOT_FOUND"): ...


class InstanceTerminalError(StateError, code="INSTANCE_TERMINAL"): ...


class ScheduleNotFoundError(StateError, LookupError, code="SCHEDULE_NOT_FOUND"): ...


class ScheduleExistsError(StateError, code="SCHEDULE_EXISTS"): ...


class AppClosedError(StateError, code="APP_CLOSED"): ...


class StreamFullError(StateError, code="STREAM_FULL"):
    """A stream has as many items or bytes as ``Limits`` allows."""


class StreamRateError(StateError, code="STREAM_RATE"):
    """A writer has written more items in a second than ``Limits.stream_rate`` allows."""


class LeaseLostError(StateError, code="LEASE_LOST"):
    """Not raised by the engine: a turn that lost its task ends without an error."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A stored error. Two objects are equal if their names and messages are."""

    name: str
    message: str
    traceback: str | None = field(default=None, compare=False, repr=False)
    """The trimmed traceback, with those of chained exceptions, at most 16 KB; None if there is none."""
    causes: list[ErrorInfo] = field(default_factory=list, compare=False)
    """The exceptions of an exception group, and the ``__cause__``; each with its own causes."""


class RunError(HoldfastError, code="RUN_ERROR"):
    """A run ended without a result. ``error`` describes the cause."""

    def __init__(self, message: str, error: ErrorInfo) -> None:
        super().__init__(message)
        self.error = error


class RunFailedError(RunError, code="RUN_FAILED"): ...


class RunTerminatedError(RunError, code="RUN_TERMINATED"): ...


class RunCancelledError(RunError, code="RUN_CANCELLED"): ...


class Rejected(HoldfastError, code="REJECTED"):
    """The run replied to an ask with ``msg.reject(reason)``; ``reason`` is that argument."""

    def __init__(self, message: str, reason: Any = None) -> None:
        super().__init__(message)
        self.reason = reason


class DeliveryError(HoldfastError, code="DELIVERY_FAILED"):
    """An outbound event was not delivered. ``status``: the HTTP status of the response; None: there was no response."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class WorkflowCodeError(HoldfastError, code="WORKFLOW_CODE_ERROR"): ...


class IOInWorkflowError(WorkflowCodeError, RuntimeError, code="IO_IN_WORKFLOW"): ...


class DuplicateStepError(WorkflowCodeError, code="DUPLICATE_STEP_KEY"): ...


class StepTypeMismatchError(WorkflowCodeError, code="STEP_TYPE_MISMATCH"): ...


class MaxStepsExceededError(WorkflowCodeError, code="MAX_STEPS_EXCEEDED"): ...


class NonDeterministicError(WorkflowCodeError, code="NON_DETERMINISTIC"):
    """An exported run does not fit the code (``replay_file``). A stored run is parked instead, and does not fail."""


class WorkflowStuckError(WorkflowCodeError, code="WORKFLOW_STUCK"):
    """Workflow code looped without waiting for a step, a timer or an event."""


class VersionUnsupportedError(WorkflowCodeError, code="VERSION_UNSUPPORTED"):
    """The run has recorded a version of a change that the code no longer supports, or does not support yet."""


class ChannelClosed(WorkflowCodeError, code="CHANNEL_CLOSED"): ...


class NotAskedError(WorkflowCodeError, code="NOT_ASKED"):
    """The code replied to a message whose sender does not wait for a reply, or already has one."""


class LinkDownError(WorkflowCodeError, code="LINK_DOWN"):
    """A linked run failed, was cancelled or was terminated."""


class RunTimeoutError(WorkflowCodeError, TimeoutError, code="RUN_TIMEOUT"):
    """The timeout of the run, or of its instance as a whole, has expired."""


class WaitForEventTimeoutError(WorkflowCodeError, TimeoutError, code="WAIT_FOR_EVENT_TIMEOUT"): ...


class WorkflowError(HoldfastError, code="WORKFLOW_ERROR"):
    """Base class of users' own structured errors; ``kind``, ``retryable`` and ``details`` are stored with the error."""

    def __init__(
        self, message: str = "", *, kind: str = "Internal", retryable: bool | None = None, details: Any = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.details = details


class NonRetryableError(WorkflowError, code="NON_RETRYABLE"):
    """Stops the retries of a step. ``name`` replaces the class name wherever the error is shown."""

    def __init__(
        self, message: str = "", name: str | None = None, *, kind: str | None = None, details: Any = None
    ) -> None:
        super().__init__(message, kind=kind or "Internal", retryable=False, details=details)
        self.name = name or type(self).__name__


class StepError(WorkflowError, code="STEP_FAILED"):
    """A step failed and is not retried. Its content is the same when it is first raised and on every replay.

    ``traceback`` is the stored text of the last attempt's traceback.
    """

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


class StepTimeoutError(StepError, TimeoutError, code="STEP_TIMEOUT"): ...


class StepMaxAttemptsExceeded(StepError, code="STEP_MAX_ATTEMPTS_EXCEEDED"): ...


class UniqueConstraintError(StepError, code="STEP_UNIQUE_CONSTRAINT_VIOLATION"): ...


class ChildError(StepError, code="CHILD_FAILED"):
    """A child failed, was cancelled or was terminated. ``pid`` and ``status`` are the child's; see ``__cause__``."""

    def __init__(self, message: str, *, pid: str = "", status: str = "errored", **rest: Any) -> None:
        super().__init__(message, **rest)
        self.pid = pid
        self.status = status


class DamagedRunError(HoldfastError, code="RUN_DAMAGED"):
    """Stored data of one run cannot be read. A worker that claims the run parks it; other runs are not affected."""


class PayloadError(DamagedRunError, code="PAYLOAD_UNREADABLE"):
    """A stored value cannot be decoded: its key or codec is missing in this process, or the value is damaged.

    A worker parks the run; after the key was added, ``resume`` continues it. Other runs are not affected.
    """


class StoreError(HoldfastError, code="STORE_ERROR"):
    """The database failed or refused a request. Writes that were acknowledged before are durable."""


class StoreBusyError(StoreError, code="STORE_BUSY"): ...


class StoreUnavailableError(StoreError, code="STORE_UNAVAILABLE"): ...


class StoreReadOnlyError(StoreError, code="STORE_READ_ONLY"): ...


class StoreFullError(StoreError, code="STORE_FULL"): ...


class StoreCorruptError(StoreError, code="STORE_CORRUPT"): ...


class NotADatabaseError(StoreError, code="NOT_A_DATABASE"): ...


class SchemaVersionError(StoreError, code="SCHEMA_VERSION"): ...
