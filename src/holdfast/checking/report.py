"""The result of a check: counts and examples for each workflow, as text and in the format of JUnit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from holdfast.kernel.inspection import Difference, DifferenceKind

_MAX_EXAMPLES = 20
"""Maximum number of runs that a report keeps for each workflow and kind of difference."""
_SHOWN = 3

_TEXTS = {
    DifferenceKind.PARKED: "would be parked",
    DifferenceKind.VALUE: "have a recorded value that no longer fits",
    DifferenceKind.STEP: "would call a step again",
    DifferenceKind.UNUSED: "would not use a recorded result",
    DifferenceKind.WAIT: "wait for an event that the code does not wait for",
    DifferenceKind.FAILED: "would fail",
    DifferenceKind.END: "would end differently",
    DifferenceKind.UNKNOWN: "belong to an unknown workflow",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A run that does not fit."""

    pid: str
    run_number: int
    message: str


@dataclass(slots=True)
class WorkflowReport:
    """The checked runs of one workflow. A run with several differences is counted once for each kind."""

    name: str
    checked: int = 0
    fits: int = 0
    pinned: int = 0
    """Runs that are pinned to another version: they are not claimed by workers of this code, so they are not
    counted above."""
    pinned_fits: int = 0
    counts: Counter[DifferenceKind] = field(default_factory=Counter)
    examples: dict[DifferenceKind, list[Example]] = field(default_factory=dict)

    def add(self, pid: str, run_number: int, differences: list[Difference]) -> None:
        self.checked += 1
        self.fits += not differences
        first_of_kind = {difference.kind: difference for difference in reversed(differences)}
        for kind, difference in first_of_kind.items():
            self.counts[kind] += 1
            examples = self.examples.setdefault(kind, [])
            if len(examples) < _MAX_EXAMPLES:
                examples.append(Example(pid, run_number, difference.message))

    def add_pinned(self, differences: list[Difference]) -> None:
        """Count a run that is pinned to another version. It meets this code only if it is moved."""
        self.pinned += 1
        self.pinned_fits += not differences

    def merge(self, other: WorkflowReport) -> None:
        self.checked += other.checked
        self.pinned += other.pinned
        self.pinned_fits += other.pinned_fits
        self.fits += other.fits
        self.counts += other.counts
        for kind, examples in other.examples.items():
            self.examples[kind] = [*self.examples.get(kind, []), *examples][:_MAX_EXAMPLES]

    def lines(self) -> Iterator[str]:
        yield f"{self.name}: {_runs(self.checked)} checked, {self.fits} fit"
        if self.pinned:
            fits = f"{self.pinned_fits} would fit if moved"
            yield f"  {_runs(self.pinned)} pinned to another version, not counted; {fits}"
        for kind in DifferenceKind:
            if not self.counts[kind]:
                continue
            yield f"  {self.counts[kind]} {_TEXTS[kind]}:"
            messages: dict[str, list[Example]] = {}
            for example in self.examples[kind]:
                messages.setdefault(example.message, []).append(example)
            for message, examples in [*messages.items()][:_SHOWN]:
                pids = ", ".join(example.pid for example in examples[:_SHOWN]) + (" …" if examples[_SHOWN:] else "")
                yield f"    {pids}: {message}"
            if len(messages) > _SHOWN:
                yield f"    and {len(messages) - _SHOWN} more messages"


@dataclass(slots=True)
class CheckReport:
    """The checked runs by workflow, in the order of names."""

    workflows: dict[str, WorkflowReport] = field(default_factory=dict)
    sampled: bool = False

    @property
    def ok(self) -> bool:
        """True if every checked run fits."""
        return not any(workflow.counts for workflow in self.workflows.values())

    @property
    def checked(self) -> int:
        return sum(workflow.checked for workflow in self.workflows.values())

    def of(self, workflow: str) -> WorkflowReport:
        return self.workflows.setdefault(workflow, WorkflowReport(workflow))

    def merge(self, other: CheckReport) -> None:
        self.sampled |= other.sampled
        for name, workflow in other.workflows.items():
            self.of(name).merge(workflow)

    def text(self) -> str:
        lines = [line for name in sorted(self.workflows) for line in self.workflows[name].lines()]
        misfits = self.checked - sum(workflow.fits for workflow in self.workflows.values())
        if not self.checked:
            others = any(workflow.pinned for workflow in self.workflows.values())
            lines.append("all open runs are pinned to other versions" if others else "there are no open runs")
        else:
            what = "checked runs (a sample)" if self.sampled else "open runs"
            lines.append(f"{self.checked - misfits:,} of {self.checked:,} {what} fit the code")
        return "\n".join(lines)

    def junit(self) -> str:
        """A report for CI: a test suite for each workflow, a failed test for each example of a difference."""
        suites = "".join(self._suite(self.workflows[name]) for name in sorted(self.workflows))
        return f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="holdfast check">{suites}\n</testsuites>\n'

    @staticmethod
    def _suite(workflow: WorkflowReport) -> str:
        failures = [(kind, example) for kind in DifferenceKind for example in workflow.examples.get(kind, [])]
        suite = f"holdfast check {workflow.name}"
        cases = f"\n  <testcase classname={_attribute(suite)} name={_attribute(f'{workflow.fits} runs fit')}/>"
        for kind, example in failures:
            name = f"{example.pid} run {example.run_number}"
            cases += (
                f"\n  <testcase classname={_attribute(suite)} name={_attribute(name)}>"
                f"<failure type={_attribute(kind.value)} message={_attribute(_TEXTS[kind])}>"
                f"{escape(_printable(example.message))}</failure></testcase>"
            )
        return (
            f'\n <testsuite name={_attribute(suite)} tests="{len(failures) + 1}" failures="{len(failures)}">{cases}'
            "\n </testsuite>"
        )


def _runs(count: int) -> str:
    return f"{count:,} run" if count == 1 else f"{count:,} runs"


def _attribute(text: str) -> str:
    return quoteattr(_printable(text))


def _printable(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
