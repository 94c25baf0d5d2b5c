"""The workers of a seed run: killed, restarted, stopped and continued as the faults require."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.runner.config import WorkerConfig
from holdfast.testing.simulation.app_process import WORKER_POLL_SECONDS, AppProcess
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.fault_plan import FaultKind, FaultPlan
from holdfast.testing.simulation.loop import Process
from holdfast.testing.simulation.scenario import BASELINE_SEED, Scenario
from holdfast.testing.simulation.scenario_loop import ScenarioLoop
from holdfast.testing.simulation.step_calls import StepCalls
from holdfast.testing.simulation.streams import stream

_MAX_WORKERS = 3


class WorkerGroup:
    """The workers. ``now`` returns the database's time in milliseconds, ``note`` adds an entry to the story."""

    def __init__(
        self,
        scenario: Scenario,
        loop: ScenarioLoop,
        faults: FaultPlan,
        now: Callable[[], int],
        note: Callable[[str, str], None],
    ) -> None:
        self._scenario = scenario
        self._loop = loop
        self._faults = faults
        self._now = now
        self._note = note
        self._workers: list[AppProcess] = []
        self._stopped: list[tuple[int, Process]] = []
        """Stopped processes, each with the time at which it continues."""

    @property
    def busy(self) -> bool:
        """True if a worker has turns, reserved slots or graph runs in memory."""
        return any(worker.busy for worker in self._workers)

    @property
    def continue_times(self) -> list[int]:
        """The times at which stopped workers continue."""
        return [at for at, _ in self._stopped]

    def create(self, database: SimulatedDatabase, calls: StepCalls) -> None:
        """Create workers with the app's configuration, some of them without a cache."""
        seed = self._faults.seed
        count = 1 if seed == BASELINE_SEED else stream(seed, "workers").randint(1, _MAX_WORKERS)
        for n in range(1, count + 1):
            self._workers.append(self._create_worker(f"worker {n}", database, calls))

    def boot(self) -> None:
        for worker in self._workers:
            worker.boot()

    def wake(self) -> None:
        """Let the workers check when the next task is due."""
        for worker in self._workers:
            worker.wake()

    def end(self) -> None:
        for worker in self._workers:
            worker.end()

    def kill(self, process: Process | None, how: str) -> None:
        for worker in self._workers:
            if worker.process is process:
                worker.kill(how, process)

    def stop(self, process: Process | None, leases: float) -> None:
        """Stop a process for a time, given in leases."""
        if process is None:
            return
        seconds = leases * self._scenario.app.worker_config.lease_ms / 1000
        self._note(process.name, f"stops for {seconds:.1f} s before the result is recorded, then continues")
        process.stopped = True
        self._stopped.append((self._now() + round(seconds * 1000), process))

    def continue_stopped(self) -> None:
        """Continue the stopped processes whose time has come."""
        for entry in [entry for entry in self._stopped if entry[0] <= self._now()]:
            self._stopped.remove(entry)
            entry[1].stopped = False

    def _create_worker(self, name: str, database: SimulatedDatabase, calls: StepCalls) -> AppProcess:
        return AppProcess(
            name,
            self._scenario.app,
            self._loop,
            database,
            self._faults,
            config=self._config(name),
            calls=calls,
            died=self._restart_later,
        )

    def _config(self, name: str) -> WorkerConfig:
        config = self._scenario.app.worker_config
        config = replace(config, poll=max(WORKER_POLL_SECONDS, config.poll_ms / 1000))
        return replace(config, cache=0) if self._faults.has(FaultKind.NO_CACHE, name) else config

    def _restart_later(self, worker: AppProcess, how: str) -> None:
        self._note(worker.name, f"dies {how}")
        delay = self._faults.draw(f"again.{worker.name}.{worker.lives}").uniform(0.02, 1.0)
        self._loop.call_later(delay, worker.boot, context=self._loop.main.context())
