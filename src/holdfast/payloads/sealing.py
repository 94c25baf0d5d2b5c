"""Sealing and opening: the conversion of one plain value to its stored form, and back.

``Sealer`` does no I/O. A value above the threshold gets the id of a blob; ``take_writes`` returns the bytes, which
the caller writes. If a value is in a blob that was not read yet, ``needs`` has the id of the blob, and the caller opens
the value again after reading the blob. ``PayloadStore`` reads and writes blobs around each call of the database.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.core import envelope
from holdfast.core.blob import references
from holdfast.errors import PayloadError, PayloadTooLargeError
from holdfast.payloads.codecs import CodecChain

_NO_CODECS = CodecChain()


class Place(NamedTuple):
    """The place of a value: an encrypted value can only be read in its place."""

    home: str
    """The pid of the instance; for a memo the workflow."""
    role: str
    """The kind of value in that instance: ``params``, ``output``, ``fact:KEY``, ``event:TYPE``."""

    @property
    def workflow(self) -> str:
        return self.home.partition("/")[0]


class BlobWrite(NamedTuple):
    id: str
    data: bytes


@dataclass(slots=True)
class SealSettings:
    """The options of an app that concern stored values."""

    chain: CodecChain | None = None
    by_workflow: Mapping[str, CodecChain | None] = field(default_factory=dict)
    """The codecs of workflows with codecs of their own. Workflows may be registered later."""
    threshold: int | None = None
    """Values above this number of stored bytes become blobs; None: the app has no blob store."""
    max_blob: int = 2**62

    def chain_of(self, workflow: str) -> CodecChain:
        return self.by_workflow.get(workflow) or self.chain or _NO_CODECS

    @property
    def encrypts(self) -> bool:
        """True if the values of any workflow are encrypted."""
        return any(chain is not None and chain.encrypts for chain in (self.chain, *self.by_workflow.values()))


class Sealer:
    """Seals and opens values, with the blobs that were read and those that are to be written."""

    def __init__(self, settings: SealSettings, new_id: Callable[[], str]) -> None:
        self._settings = settings
        self._new_id = new_id
        self._writes: list[BlobWrite] = []
        self.inline = False
        """True: no value becomes a blob."""
        self.needs: dict[str, None] = {}
        """Ids of blobs without which a value could not be opened."""
        self.blobs: Mapping[str, bytes | PayloadError] = {}
        """Blobs that were read, by id."""

    def take_writes(self) -> list[BlobWrite]:
        writes, self._writes = self._writes, []
        return writes

    def seal(self, data: bytes, place: Place, *, inline: bool = False, name: str | None = None) -> bytes:
        """Encode a plain value for the store. ``inline``: never as a blob. ``name``: stays readable in the envelope."""
        tags, encoded = self._settings.chain_of(place.workflow).encode(data, _bound_to(place))
        content: dict[str, Any] = {} if name is None else {"name": name}
        content |= {"payload": 1, "codec": tags, "home": place.home}
        threshold = self._settings.threshold
        held = [] if threshold is None else references(data)
        if not (inline or self.inline) and threshold is not None and len(encoded) > threshold:
            return self._blob(content, encoded, held)
        if held:
            content["blobs"] = held
        elif not tags:
            return data
        return envelope.write(content | {"data": b64encode(encoded).decode()})

    def _blob(self, content: dict[str, Any], encoded: bytes, held: list[str]) -> bytes:
        if len(encoded) > self._settings.max_blob:
            raise PayloadTooLargeError(
                f"a value takes {len(encoded)} bytes in the blob store; at most {self._settings.max_blob} are allowed"
            )
        write = BlobWrite(self._new_id(), encoded)
        self._writes.append(write)
        digest = hashlib.sha256(encoded).hexdigest()
        return envelope.write(content | {"blobs": [write.id, *held], "size": len(encoded), "sha256": digest})

    def open(self, data: bytes, place: Place, *, forked: bool = False) -> bytes:
        """Decode a stored value. A value that cannot be decoded stays an envelope, which has the error.

        The value is used in one run only, so an error here must not fail the call that read many runs.
        ``forked``: the run is a fork, and may hold values of another instance of its workflow.
        """
        try:
            return self._open(data, place, forked)
        except PayloadError as error:
            return envelope.problem(data, error)

    def _open(self, data: bytes, place: Place, forked: bool) -> bytes:
        content = envelope.read(data)
        home = content.get("home")
        if not isinstance(home, str):
            raise PayloadError("the envelope of a stored value is damaged: it has another form than expected")
        actual = Place(home, place.role)
        # The params of debounced and batched starts belong to the workflow.
        if home not in (place.home, place.workflow) and not (forked and actual.workflow == place.workflow):
            raise PayloadError(f"the value belongs to {home}, not to {place.home}")
        if "sha256" in content:
            encoded = self._blob_of(content)
            if encoded is None:
                return data
        else:
            encoded = _from_base64(content)
        return self._settings.chain_of(place.workflow).decode(content["codec"], encoded, _bound_to(actual))

    def _blob_of(self, content: Mapping[str, Any]) -> bytes | None:
        blob = content["blobs"][0]
        read = self.blobs.get(blob)
        if read is None:
            self.needs[blob] = None
            return None
        if isinstance(read, PayloadError):
            raise read
        if hashlib.sha256(read).hexdigest() != content["sha256"]:
            raise PayloadError(f"the blob {blob} is damaged: its hash differs from the stored one")
        return read


def _bound_to(place: Place) -> bytes:
    return f"{place.home}\0{place.role}".encode("utf-8", "surrogatepass")


def _from_base64(content: Mapping[str, Any]) -> bytes:
    try:
        return b64decode(content["data"], validate=True)
    except (KeyError, TypeError, Base64Error):
        raise PayloadError("the envelope of a stored value is damaged: its data is not base64") from None
