"""A simulated disk that loses unsynced writes: a SQLite VFS records all writes, and ``Disk`` builds images from them.

An image is the content of the files after a power cut. It contains all writes that were synced before the cut.
Unsynced writes may be contained completely, in part or not at all, in any order, by whole sectors; the last sector of a
write may be half written or contain garbage. A random number generator chooses.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from random import Random
from typing import Any, NamedTuple

import apsw
import pytest

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
    """A sync that failed: the process can still read the unsynced writes, but no later sync writes them to the disk."""

    file: str


class Delete(NamedTuple):
    file: str


class MakeFolder(NamedTuple):
    """A new folder. It is on the disk when the folder that contains it is synced."""

    folder: str


class Rename(NamedTuple):
    """A file gets another name in its folder: on the disk when the folder is synced."""

    file: str
    name: str


class SyncFolder(NamedTuple):
    folder: str


class Acknowledged(NamedTuple):
    """An acknowledgement that a caller has received: its data must survive a cut from here on."""

    line: dict[str, Any]


Entry = Write | Truncate | Sync | FailedSync | Delete | MakeFolder | Rename | SyncFolder | Acknowledged


@dataclass(slots=True)
class Journal:
    """Operations on the files of one directory, and acknowledgements, in order."""

    folder: Path
    failing: frozenset[int] = frozenset()
    """The numbers of the syncs that fail."""
    failing_file: str | None = None
    """The next sync of this file fails."""
    syncs: int = 0
    entries: list[Entry] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, entry: Entry) -> None:
        with self._lock:
            self.entries.append(entry)

    def fail(self, syncs: frozenset[int]) -> None:
        """Let these syncs fail, counted from 1 from now on."""
        self.failing, self.syncs = syncs, 0

    def fail_next(self, file: str) -> None:
        """Let the next sync of this file fail."""
        self.failing_file = file

    def sync(self, file: str) -> bool:
        """Record a sync; returns False if it fails."""
        self.syncs += 1
        fails = self.syncs in self.failing or file == self.failing_file
        if file == self.failing_file:
            self.failing_file = None
        self.add(FailedSync(file) if fails else Sync(file))
        return not fails

    def covers(self, name: str | None) -> bool:
        return name is not None and Path(name).parent == self.folder and not name.endswith("-shm")


@dataclass(slots=True)
class Names:
    """The folders and the names of files on a disk.

    Files in the journal's own folder are not renamed, and SQLite syncs their names. A file in a folder below it exists
    after a cut if the entries of its folders have arrived, and its content is under its last name that has arrived.
    """

    folders: set[str] = field(default_factory=lambda: {"."})
    renamed: dict[str, str] = field(default_factory=dict)
    """The name on the disk of files by their first names."""
    pending: list[MakeFolder | Rename] = field(default_factory=list)

    def apply(self, entry: MakeFolder | Rename | SyncFolder) -> None:
        if not isinstance(entry, SyncFolder):
            self.pending.append(entry)
            return
        arrived = [one for one in self.pending if str(PurePath(one[0]).parent) == entry.folder]
        self.pending = [one for one in self.pending if one not in arrived]
        self._arrive(arrived)

    def _arrive(self, entries: Iterable[MakeFolder | Rename]) -> None:
        for entry in entries:
            if isinstance(entry, MakeFolder):
                self.folders.add(entry.folder)
            else:
                self.renamed[entry.file] = entry.name

    def named(self, content: dict[str, bytes], rng: Random | None) -> dict[str, bytes]:
        """The files that exist after a cut now."""
        after = Names({*self.folders}, {**self.renamed})
        after._arrive(one for one in self.pending if rng is not None and rng.random() < 0.5)
        contents = dict.fromkeys(after.renamed.values(), b"")
        contents |= {after.renamed.get(file, file): data for file, data in content.items()}
        return {
            file: data
            for file, data in contents.items()
            if all(str(folder) in after.folders for folder in PurePath(file).parents)
        }


class Disk:
    """The state of a disk: the synced content of each file, and its unsynced writes."""

    def __init__(self) -> None:
        self._synced: dict[str, bytearray] = {}
        self._pending: dict[str, list[Write | Truncate]] = {}
        self._names = Names()

    def apply(self, entry: Entry) -> None:
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
        elif isinstance(entry, (MakeFolder, Rename, SyncFolder)):
            self._names.apply(entry)

    def image(self, rng: Random | None = None) -> dict[str, bytes]:
        """The files after a cut now. With ``rng`` a random part of the unsynced writes is included, else none."""
        found: dict[str, bytes] = {}
        for file, synced in self._synced.items():
            pending = self._pending.get(file) if rng is not None else None
            if pending and rng is not None:
                content = bytearray(synced)
                for part in _arrived_writes(pending, rng):
                    _apply(content, part)
                found[file] = bytes(content)
            else:
                found[file] = bytes(synced)
        return self._names.named(found, rng)

    @staticmethod
    def of(image: dict[str, bytes]) -> Disk:
        """A disk that has these files, and no unsynced writes."""
        disk = Disk()
        disk._synced = {file: bytearray(content) for file, content in image.items()}
        disk._names.folders |= {str(folder) for file in image for folder in PurePath(file).parents}
        return disk


def _arrived_writes(changes: list[Write | Truncate], rng: Random) -> Iterator[Write | Truncate]:
    """The parts of the unsynced changes that reach the disk: writes in any order, but not across a truncation."""
    together: list[Write | Truncate] = []
    for change in changes:
        if isinstance(change, Truncate):
            yield from _shuffled(together, rng)
            together = []
            if rng.random() < 0.5:
                yield change
        else:
            together += _parts(change, rng)
    yield from _shuffled(together, rng)


def _shuffled(parts: list[Write | Truncate], rng: Random) -> list[Write | Truncate]:
    if rng.random() < 0.5:
        rng.shuffle(parts)
    return parts


def _parts(change: Write, rng: Random) -> list[Write]:
    """The parts of one write that reach the disk: all, none, some sectors, or a beginning, perhaps with garbage."""
    fate = rng.random()
    if fate < 0.35:
        return [change]
    if fate < 0.55:
        ats = range(0, len(change.data), _SECTOR)
        return [_piece(change, at, at + _SECTOR) for at in ats if rng.random() < 0.5]
    if fate < 0.75:
        torn = rng.randrange(len(change.data) + 1)
        pieces = [_piece(change, 0, torn)]
        if rng.random() < 0.5:
            rest = min(len(change.data), -(-torn // _SECTOR) * _SECTOR) - torn
            pieces.append(Write(change.file, change.offset + torn, rng.randbytes(rest)))
        return pieces
    return []


def _piece(change: Write, start: int, end: int) -> Write:
    return Write(change.file, change.offset + start, change.data[start:end])


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
def _recording_files(journal: Journal) -> Iterator[None]:
    """Record files that Python writes in folders below the journal's folder: their syncs, new names and folders."""
    fsync, rename, mkdir = os.fsync, Path.rename, Path.mkdir

    def inside(path: Path) -> str | None:
        return str(path.relative_to(journal.folder)) if path.is_relative_to(journal.folder) else None

    def record_fsync(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if (name := inside(path)) is None:
            return
        if path.is_dir():
            journal.add(SyncFolder(name))
            return
        journal.add(Write(name, 0, path.read_bytes()))
        if not journal.sync(name):
            raise OSError("the disk failed")

    def record_rename(path: Path, target: Any) -> Path:
        renamed = rename(path, target)
        if (name := inside(path)) is not None:
            journal.add(Rename(name, str(Path(target).relative_to(journal.folder))))
        return renamed

    def record_mkdir(path: Path, *args: Any, **options: Any) -> None:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        mkdir(path, *args, **options)
        for folder in reversed(missing):
            if (name := inside(folder)) is not None:
                journal.add(MakeFolder(name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", record_fsync)
        patch.setattr(Path, "rename", record_rename)
        patch.setattr(Path, "mkdir", record_mkdir)
        yield


@contextmanager
def recording(folder: Path) -> Iterator[Journal]:
    """Record the operations on databases that this process opens in the folder, and on files below it."""
    journal = Journal(folder)
    before = apsw.vfs_details()[0]["zName"]
    vfs = _RecordingVFS(before, journal)
    try:
        with _recording_files(journal):
            yield journal
    finally:
        apsw.set_default_vfs(before)
        vfs.unregister()
