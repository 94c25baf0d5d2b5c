"""The public names of the package, and the cost of importing it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
import holdfast.testing
from holdfast import errors

PUBLIC = [
    "AppClosedError",
    "Chain",
    "ChainTask",
    "ChainTaskKind",
    "Clock",
    "Completed",
    "Context",
    "Dead",
    "DuplicateStepError",
    "ErrorInfo",
    "Event",
    "Failed",
    "Handle",
    "History",
    "Holdfast",
    "HoldfastError",
    "InstanceStatus",
    "Limits",
    "LogLine",
    "NonRetryableError",
    "Ok",
    "Outbound",
    "OutboundEvent",
    "Outcome",
    "OutboxRecord",
    "Page",
    "Randomness",
    "Retry",
    "RetryStep",
    "RunCancelledError",
    "RunFailedError",
    "RunInfo",
    "RunTerminatedError",
    "Runtime",
    "Start",
    "StepError",
    "StepMaxAttemptsExceeded",
    "StepTimeoutError",
    "StepTx",
    "StepTypeMismatchError",
    "WaitForEventTimeoutError",
    "Waiting",
    "Webhook",
    "WorkerConfig",
    "WorkflowError",
    "context_values",
    "verify_webhook",
]

CODES = [
    "WORKFLOW_NOT_FOUND",
    "INSTANCE_NOT_FOUND",
    "INSTANCE_ID_ALREADY_EXISTS",
    "INVALID_INSTANCE_ID",
    "INVALID_NAME",
    "INVALID_DURATION",
    "INVALID_CURSOR",
    "WORKFLOW_ALREADY_REGISTERED",
    "IO_IN_WORKFLOW",
    "INSTANCE_TERMINAL",
    "INVALID_EVENT_TYPE",
    "INVALID_OPTION",
    "PAYLOAD_TOO_LARGE",
    "NOT_SERIALIZABLE",
    "STEP_TIMEOUT",
    "STEP_MAX_ATTEMPTS_EXCEEDED",
    "STEP_UNIQUE_CONSTRAINT_VIOLATION",
    "WAIT_FOR_EVENT_TIMEOUT",
    "DUPLICATE_STEP_KEY",
    "STEP_TYPE_MISMATCH",
    "MAX_STEPS_EXCEEDED",
    "NON_DETERMINISTIC",
    "LEASE_LOST",
]

ALL_ERRORS = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.HoldfastError) and cls.__module__ == errors.__name__
]

# Processor time, because the machine may be busy with other work.
IMPORT = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_importable(name: str) -> None:
    assert hasattr(holdfast, name)
    assert name in holdfast.__all__


def test_the_list_of_names_is_sorted_and_every_name_exists() -> None:
    assert list(holdfast.__all__) == sorted(holdfast.__all__)
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)


def test_the_list_of_names_is_complete() -> None:
    modules = {name for name, value in vars(holdfast).items() if inspect.ismodule(value)}
    visible = {name for name in vars(holdfast) if not name.startswith("_")} - modules
    assert visible == set(holdfast.__all__)


def test_the_testing_tools_are_importable() -> None:
    assert list(holdfast.testing.__all__) == sorted(holdfast.testing.__all__)
    assert {"Harness", "simulate", "SentEvent", "SimulationFailed", "SimulationReport"} <= {*holdfast.testing.__all__}
    assert all(hasattr(holdfast.testing, name) for name in holdfast.testing.__all__)


ONLY_IN_ERRORS = {errors.MissingExtraError}
"""Errors added since the top level has all names of the contract."""


@pytest.mark.parametrize("cls", ALL_ERRORS, ids=lambda cls: cls.__name__)
def test_every_error_is_exported_and_drawn_in_the_tree(cls: type[errors.HoldfastError]) -> None:
    exported = errors if cls in ONLY_IN_ERRORS else holdfast
    assert getattr(exported, cls.__name__) is cls
    assert cls.__name__ in (errors.__doc__ or "")


def test_every_code_of_the_contract_belongs_to_one_error() -> None:
    codes = [cls.code for cls in ALL_ERRORS]
    assert len(set(codes)) == len(codes)
    assert set(CODES) <= set(codes)


@pytest.mark.kind_settings("counts what an import loads; hostility is loaded with it")
def test_an_import_takes_at_most_five_times_as_long_as_that_of_asyncio(tmp_path: Path) -> None:
    """The modules are compiled, as after a user's first import. A ratio, because machines differ and are shared."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def import_seconds(module: str) -> float:
        command = [sys.executable, "-c", IMPORT.format(module)]
        return float(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)

    times = [(import_seconds("holdfast"), import_seconds("asyncio")) for _ in range(8)]
    assert min(holdfast_time for holdfast_time, _ in times) < 5 * min(asyncio_time for _, asyncio_time in times)


@pytest.mark.kind_settings("counts what an import loads; hostility is loaded with it")
def test_an_import_does_not_load_optional_modules() -> None:
    code = "import sys, holdfast; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"typer", "rich", "apsw", "hypothesis", "pytest", "holdfast.testing", "holdfast.cli"}
