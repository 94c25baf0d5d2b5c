"""The public names of the package, and the cost of importing it."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
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

SOURCE = ast.parse(Path(holdfast.__file__).read_text())

# Processor time, because the machine may be busy with other work.
TIMED = "import time; t = time.process_time(); {}; print(time.process_time() - t)"


def output(program: str, env: Mapping[str, str] | None = None) -> str:
    """The output of a program that runs in a new process."""
    return subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_importable(name: str) -> None:
    assert hasattr(holdfast, name)
    assert name in holdfast.__all__


def test_the_list_of_names_is_sorted_and_every_name_exists() -> None:
    assert list(holdfast.__all__) == sorted(holdfast.__all__)
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)


def test_type_checkers_see_the_public_names_and_the_modules_that_are_loaded() -> None:
    for_type_checkers = next(node for node in SOURCE.body if isinstance(node, ast.If))
    imports = [node for node in for_type_checkers.body if isinstance(node, ast.ImportFrom)]

    modules = {alias.name: node.module for node in imports for alias in node.names}

    assert sorted(modules) == holdfast.__all__
    assert {name: module for name, module in modules.items() if module != "holdfast.errors"} == holdfast._MODULES


def test_the_package_lists_its_public_names_and_no_helpers() -> None:
    modules = {name for name in dir(holdfast) if inspect.ismodule(getattr(holdfast, name))}
    assert {name for name in dir(holdfast) if not name.startswith("_")} - modules == {*holdfast.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Holdfats'"):
        _ = holdfast.Holdfats


def test_the_module_of_errors_is_an_attribute_of_the_package() -> None:
    assert output("import holdfast; print(holdfast.errors.MissingExtraError.__name__)") == "MissingExtraError"


def test_a_star_import_has_every_public_name() -> None:
    assert output("from holdfast import *; import holdfast; print({*holdfast.__all__} <= {*globals()})") == "True"


def test_the_testing_tools_are_importable() -> None:
    assert list(holdfast.testing.__all__) == sorted(holdfast.testing.__all__)
    assert {"Harness", "simulate", "SentEvent", "SimulationFailed", "SimulationReport"} <= {*holdfast.testing.__all__}
    assert all(hasattr(holdfast.testing, name) for name in holdfast.testing.__all__)


ONLY_IN_ERRORS = {
    errors.DamagedRunError, errors.LimitNotFoundError, errors.LimitReachedError, errors.MissingExtraError,
    errors.ScheduleExistsError, errors.ScheduleNotFoundError, errors.StreamFullError, errors.StreamRateError,
    errors.WorkerNotFoundError,
}  # fmt: skip
"""Errors added since the top level has all names of the contract."""


@pytest.mark.parametrize("cls", ALL_ERRORS, ids=lambda cls: cls.__name__)
def test_every_error_is_exported_and_drawn_in_the_tree(cls: type[errors.HoldfastError]) -> None:
    assert getattr(errors, cls.__name__) is cls
    assert (cls.__name__ in holdfast.__all__) is (cls not in ONLY_IN_ERRORS)
    assert cls.__name__ in (errors.__doc__ or "")


def test_every_code_of_the_contract_belongs_to_one_error() -> None:
    codes = [cls.code for cls in ALL_ERRORS]
    assert len(set(codes)) == len(codes)
    assert set(CODES) <= set(codes)


LOADED_LATER = {
    "to open an app": {"client", "kernel.requests", "open_app", "runner.worker", "store", "store.protocol"},
    "to run workflows": {"workflow.machine"},
    "to read runs": {"core.history", "core.records", "models"},
    "if used": {"chain", "cli", "core.cron", "graph", "http", "testing", "webhook"},
}
OTHER_PACKAGES = {"apsw", "asyncpg", "cronsim", "fastapi", "httpx", "pydantic", "pytest", "rich", "typer", "zoneinfo"}


@pytest.mark.kind_settings("counts what an import loads; hostility is loaded with it")
def test_importing_the_package_loads_none_of_its_modules() -> None:
    loaded = output("import sys, holdfast; print(*sys.modules)").split()

    assert {name for name in loaded if name.startswith("holdfast")} == {"holdfast", "holdfast._version"}
    assert not {"asyncio", "dataclasses", "inspect", *OTHER_PACKAGES} & {*loaded}


@pytest.mark.kind_settings("counts what an import loads; hostility is loaded with it")
def test_defining_a_workflow_does_not_load_the_modules_that_execute_it() -> None:
    program = """
import sys
from holdfast import Context, Holdfast
app = Holdfast("sqlite://")
@app.step
async def double(number: int) -> int: return 2 * number
@app.workflow
async def work(ctx: Context, number: int) -> int: return await double(number)
print(*sys.modules)
"""
    loaded = {*output(program).split()}

    unwanted = {f"holdfast.{module}" for modules in LOADED_LATER.values() for module in modules} | OTHER_PACKAGES
    assert not unwanted & loaded
    assert len([name for name in loaded if name.startswith("holdfast.")]) <= 66


@pytest.mark.kind_settings("counts what an import loads; hostility is loaded with it")
def test_imports_are_fast(tmp_path: Path) -> None:
    """Compared with the import of asyncio, because machines differ and are shared. Measured: 0.2 and 1.9.

    The modules are compiled, as after a user's first import.
    """
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def seconds(statement: str) -> float:
        return min(float(output(TIMED.format(statement), env)) for _ in range(8))

    unit = seconds("import asyncio")
    assert seconds("import holdfast") < unit
    assert seconds("from holdfast import Context, Holdfast") < 3 * unit
