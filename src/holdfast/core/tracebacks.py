"""Tracebacks as text: frames of user code in full, frames of libraries and of the engine folded.

The text is built when an attempt or a run fails and is stored with the error, so no frame is kept alive.
"""

from __future__ import annotations

import gc
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

from holdfast.errors import ChildError, StepError

MAX_BYTES = 16 * 1024
_MAX_CHAIN = 8
_FOLDED = "<folded>"
ENGINE = "holdfast"
_PACKAGE = Path(__file__).parents[1]
_EXAMPLES = tuple(_PACKAGE / "cli" / name for name in ("example_app.py", "example_shop.py"))
"""Files of the package whose workflows stand for those of a user."""


def trimmed_traceback(error: BaseException) -> str | None:
    """Format the trimmed traceback of an exception and its chain. None: no frames. This function never raises."""
    try:
        shown = TracebackException.from_exception(error, lookup_lines=False, compact=True)
        if not any(entry.stack for entry, _ in _tree(shown, error)) and recorded_step_error(error) is None:
            return None
        own = _first_library(entry.stack for entry, _ in _tree(shown, error))
        for entry, exception in [*_tree(shown, error)]:
            entry.stack = _folded(entry.stack, own)
            _add_stored_traceback(entry, exception)
        return bounded("".join(shown.format()).rstrip("\n"))
    except Exception:  # an exception class of a user whose attributes raise
        return None


def format_stack(frames: Iterable[FrameType]) -> str | None:
    """Format a stack of frames, outermost first. None: there are no frames."""
    summary = StackSummary.extract(((frame, frame.f_lineno) for frame in frames), lookup_lines=False)
    return bounded("".join(_folded(summary, _first_library([summary])).format()).rstrip("\n")) or None


def coroutine_frames(awaited: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine and of what it awaits, outermost first, until a future or a task."""
    while awaited is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                awaited = getattr(awaited, _AWAITED[kind])
                break
        else:
            awaited = _wrapped(awaited)


_AWAITED = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}


def _wrapped(awaited: Any) -> Any:
    """The coroutine or generator behind an awaitable of the interpreter, such as that of ``__anext__``; else None.

    These awaitables have no attribute for it.
    """
    if type(awaited).__name__ not in _WRAPPERS or type(awaited).__module__ != "builtins":
        return None
    return next((inner for inner in gc.get_referents(awaited) if isinstance(inner, _SUSPENDABLE)), None)


_WRAPPERS = {"coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "anext_awaitable"}
_SUSPENDABLE = (CoroutineType, GeneratorType, AsyncGeneratorType)


def thread_frames(thread: int | None, entry: CodeType) -> list[FrameType]:
    """The frames of a thread inside the innermost call of ``entry``, outermost first."""
    frames: list[FrameType] = []
    frame = None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001  (documented)
    while frame is not None:
        if frame.f_code is entry:
            return frames[::-1]
        frames.append(frame)
        frame = frame.f_back
    return []


def recorded_step_error(error: BaseException | None) -> StepError | None:
    """The StepError behind an exception of workflow code, if the step or child has a stored traceback."""
    for candidate in (error, None if error is None else error.__cause__):
        if isinstance(candidate, StepError) and candidate.traceback is not None:
            return candidate
    return None


def bounded(text: str) -> str:
    """Cut out the middle of a text that has more than ``MAX_BYTES`` bytes in UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_BYTES:
        return text
    half = MAX_BYTES // 2 - 50
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n  ... {len(data) - 2 * half} bytes are left out ...\n{tail}"


# --- the chain of exceptions


def _tree(shown: TracebackException, error: BaseException) -> Iterator[tuple[TracebackException, BaseException]]:
    """Each exception of the chain and of the groups in it, with its printable form. A long chain is cut off."""
    queue: list[tuple[TracebackException | None, BaseException | None, int]] = [(shown, error, 0)]
    while queue:
        entry, exception, depth = queue.pop()
        if entry is None or exception is None:
            continue
        if depth == _MAX_CHAIN:
            entry.__cause__ = entry.__context__ = None
        yield entry, exception
        queue.append((entry.__cause__, exception.__cause__, depth + 1))
        queue.append((entry.__context__, exception.__context__, depth + 1))
        if isinstance(exception, BaseExceptionGroup):
            inner: Sequence[BaseException] = exception.exceptions
            queue.extend((a, b, depth + 1) for a, b in zip(entry.exceptions or (), inner, strict=False))


def _add_stored_traceback(shown: TracebackException, error: BaseException) -> None:
    """Add the stored traceback of a failed step as a note. The note replaces the StepError, which repeats the error."""
    step = recorded_step_error(error)
    if step is None or step.traceback is None:
        return
    origin = f"run {step.pid}" if isinstance(step, ChildError) else f"step {step.step!r}, attempt {step.attempts}"
    note = f"The error came from {origin}:\n{textwrap.indent(step.traceback, '  ')}"
    notes: list[str] = getattr(shown, "__notes__", None) or []
    shown.__notes__ = [*notes, note]
    shown.__cause__, shown.__suppress_context__ = None, True


# --- frames


class _Trimmed(StackSummary):
    """A stack in which one entry can represent several folded frames."""

    def format_frame_summary(self, frame_summary: FrameSummary, **options: Any) -> str:
        if frame_summary.filename == _FOLDED:
            return f"  {frame_summary.name}\n"
        return super().format_frame_summary(frame_summary, **options)


def _folded(frames: Sequence[FrameSummary], own: str | None) -> StackSummary:
    """Keep user frames, fold each sequence of other frames into one line, and drop the engine's outermost frames."""
    groups = [(key, list(group)) for key, group in groupby(frames, lambda frame: _is_users(frame, own))]
    if groups and not groups[0][0] and len(groups) > 1 and _is_engine(groups[0][1]):
        del groups[0]
    return _Trimmed(frame for users, group in groups for frame in (group if users else [_fold(group)]))


def _fold(frames: Sequence[FrameSummary]) -> FrameSummary:
    names = ", ".join(dict.fromkeys(package_of(frame.filename) or "" for frame in frames))
    last = frames[-1]
    count = "1 frame" if len(frames) == 1 else f"{len(frames)} frames"
    location = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
    return FrameSummary(_FOLDED, None, f"... {count} of {names} ({location})", lookup_line=False, line="")


def _is_users(frame: FrameSummary, own: str | None) -> bool:
    library = package_of(frame.filename)
    return library is None or library == own


def _is_engine(frames: Iterable[FrameSummary]) -> bool:
    return all(package_of(frame.filename) == ENGINE for frame in frames)


def _first_library(stacks: Iterable[Sequence[FrameSummary]]) -> str | None:
    """The package whose function the engine called. Its frames are shown as user code.

    An application that is installed as a package is in ``site-packages`` too. If all frames are the engine's, the
    function is the engine's own.
    """
    libraries = [package_of(frame.filename) for stack in stacks for frame in stack]
    return next((library for library in libraries if library != ENGINE), ENGINE)


@lru_cache(maxsize=1024)
def package_of(filename: str) -> str | None:
    """The package of a source file: the engine, a standard library module or an installed package. None: user code."""
    if filename.startswith("<frozen "):
        return filename[len("<frozen ") : -1].partition(".")[0]
    path = Path(filename)
    if path in _EXAMPLES:
        return None
    if path.is_relative_to(_PACKAGE) or path.parts[:1] == (ENGINE,):  # the second: a frame of a compiled module
        return ENGINE
    for root in _library_paths():
        if path.is_relative_to(root):
            return _top(path.relative_to(root).parts)
    for name in ("site-packages", "dist-packages"):
        if name in path.parts:
            return _top(path.parts[path.parts.index(name) + 1 :])
    return None


@lru_cache(maxsize=1)
def _library_paths() -> list[Path]:
    """Directories of libraries, the longest first, because site-packages is inside the standard library's directory.

    They are computed at the first use, so that they do not slow down the import.
    """
    paths = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    return sorted(paths, key=lambda path: len(path.parts), reverse=True)


def _top(parts: Sequence[str]) -> str:
    return parts[0].removesuffix(".py") if parts else ""
