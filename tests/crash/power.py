"""A disk that forgets what was not synced: a SQLite VFS that records writes, and builds what a power cut leaves.

Between two syncs of a file the system may write any part of what it was given, in any order, sector by sector. An image
is what was synced before the cut, and of the rest a part that the given generator chooses (or nothing).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw

_SECTOR = 512


class Write(NamedTuple):
    file: str
    offset: int
    data: bytes


class Truncate(NamedTuple):
    file: str
    size: int


class Sync(NamedTuple):
    file: str


class FailedSync(NamedTuple):
    """What was to be synced can still be read, and will never be on the disk unless it is written again."""

    file: str


class Delete(NamedTuple):
    file: str


class Said(NamedTuple):
    """Something was acknowledged to the outside: from here on it must survive."""

    line: dict[str, Any]


Entry = Write | Truncate | Sync | FailedSync | Delete | Said


@dataclass(slots=True)
class Journal:
    """All that happened to the files of one directory, in order."""

    folder: Path
    failing: frozenset[int] = frozenset()
    """Which syncs fail, by their number."""
    syncs: int = 0
    entries: list[Entry] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, entry: Entry) -> None:
        with self._lock:
            self.entries.append(entry)

    def fail(self, syncs: frozenset[int]) -> None:
        """From now on, these syncs fail, counted from one."""
        self.failing, self.syncs = syncs, 0

    def sync(self, file: str) -> bool:
        """Count a sync; False if it is one that fails."""
        self.syncs += 1
        fails = self.syncs in self.failing
        self.add(FailedSync(file) if fails else Sync(file))
        return not fails

    def covers(self, name: str | None) -> bool:
        return name is not None and Path(name).parent == self.folder and not name.endswith("-shm")


class Disk:
    """What is on the disk for certain, and what may be."""

    def __init__(self) -> None:
        self._synced: dict[str, bytearray] = {}
        self._pending: dict[str, list[Write | Truncate]] = {}

    def take(self, entry: Entry) -> None:
        if isinstance(entry, Sync):
            content = self._synced.setdefault(entry.file, bytearray())
            for change in self._pending.pop(entry.file, ()):
                _apply(content, change)
        elif isinstance(entry, FailedSync):
            self._pending.pop(entry.file, None)
        elif isinstance(entry, Delete):
            self._synced.pop(entry.file, None)
            self._pending.pop(entry.file, None)
        elif isinstance(entry, (Write, Truncate)):
            self._pending.setdefault(entry.file, []).append(entry)

    def write_image(self, folder: Path, chance: Random | None = None) -> None:
        """The files as they are after a cut now; with ``chance`` some of what was not synced is there as well."""
        for file, synced in self._synced.items():
            content = bytearray(synced)
            for change in self._pending.get(file, ()) if chance else ():
                for part in _parts(change, chance):
                    _apply(content, part)
            (folder / file).write_bytes(content)


def _parts(change: Write | Truncate, chance: Random) -> Iterator[Write | Truncate]:
    if isinstance(change, Truncate):
        if chance.random() < 0.5:
            yield change
        return
    fate = chance.random()
    if fate < 0.4:
        yield change
    elif fate < 0.7:
        for at in range(0, len(change.data), _SECTOR):
            if chance.random() < 0.5:
                yield Write(change.file, change.offset + at, change.data[at : at + _SECTOR])


def _apply(content: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        del content[change.size :]
        return
    end = change.offset + len(change.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[change.offset : end] = change.data


class _File(apsw.VFSFile):
    def __init__(self, base: str, name: Any, flags: list[int], journal: Journal) -> None:
        super().__init__(base, name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._journal = journal if journal.covers(path) else None
        self._name = Path(path).name if path else ""

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._journal is not None:
            self._journal.add(Write(self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        if self._journal is not None:
            self._journal.add(Truncate(self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self._journal is not None and not self._journal.sync(self._name):
            raise apsw.IOError("the disk failed")


class _RecordingVFS(apsw.VFS):
    def __init__(self, base: str, journal: Journal) -> None:
        self._base = base
        self._journal = journal
        super().__init__("holdfast-power", base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self._base, name, flags, self._journal)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self._journal.covers(filename):
            self._journal.add(Delete(Path(filename).name))
        super().xDelete(filename, syncdir)


@contextmanager
def recording(folder: Path) -> Iterator[Journal]:
    """Databases opened in this process meanwhile write to the journal."""
    journal = Journal(folder)
    before = apsw.vfs_details()[0]["zName"]
    vfs = _RecordingVFS(before, journal)
    try:
        yield journal
    finally:
        apsw.set_default_vfs(before)
        vfs.unregister()
