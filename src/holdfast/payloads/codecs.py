"""Codecs: compression and encryption of one value, and the chain of codecs that an app or a workflow has.

A codec maps bytes to bytes, wherever the value is stored: ``sealing`` passes the text that binds the value to its
place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from holdfast.core.checks import is_whole_number
from holdfast.errors import InvalidOptionError, PayloadError
from holdfast.extras import extra
from holdfast.ports import SystemRandomness

_RANDOM = SystemRandomness()
_NONCE_BYTES = 12
_KEY_BYTES = 32
_MIN_COMPRESSED = 128
"""Shorter values are not compressed: the envelope would be longer than the value."""


@runtime_checkable
class Codec(Protocol):
    """One link of the chain ``Holdfast(codec=[...])``."""

    @property
    def encrypts(self) -> bool:
        """True if the encoded value cannot be read without a key."""
        ...

    def encode(self, data: bytes, bound_to: bytes) -> tuple[str, bytes] | None:
        """Encode a value: the tag that ``decode`` needs, and the bytes. None: leave the value as it is.

        ``bound_to`` names the place of the value; ``decode`` receives the same text.
        """
        ...

    def decode(self, tag: str, data: bytes, bound_to: bytes) -> bytes | None:
        """Decode a value. None: the tag belongs to another codec. Raises ``PayloadError``."""
        ...


class Zstd:
    """Compression with Zstandard. A value that would not become smaller is left as it is."""

    encrypts = False

    def __init__(self, level: int = 3) -> None:
        if not is_whole_number(level, 1, 22):
            raise InvalidOptionError(f"Zstd(level={level!r}): give a whole number from 1 to 22")
        with extra("payloads", "Compression"):
            import zstandard
        self._module: Any = zstandard
        self._level = level

    def __repr__(self) -> str:
        return f"Zstd(level={self._level})"

    def encode(self, data: bytes, bound_to: bytes) -> tuple[str, bytes] | None:
        if len(data) < _MIN_COMPRESSED:
            return None
        # A compressor belongs to one thread; making one takes a microsecond.
        packed: bytes = self._module.ZstdCompressor(level=self._level).compress(data)
        return ("zstd", packed) if len(packed) < len(data) * 3 // 4 else None  # base64 makes it a third longer

    def decode(self, tag: str, data: bytes, bound_to: bytes) -> bytes | None:
        if tag != "zstd":
            return None
        try:
            unpacked: bytes = self._module.ZstdDecompressor().decompress(data)
        except self._module.ZstdError as error:
            raise PayloadError(f"a compressed value is damaged: {error}") from None
        return unpacked


class Aes:
    """Encryption with AES-256-GCM. The first key encrypts, all keys decrypt.

    Example::

        Holdfast(codec=[Zstd(), Aes({"k2": new_key, "k1": old_key})])
    """

    encrypts = True

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """``keys``: keys of 32 bytes by their ids. An id is stored with each value; it is not secret."""
        with extra("payloads", "Encryption"):
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        if not keys:
            raise InvalidOptionError("Aes needs at least one key")
        for name, key in keys.items():
            if not isinstance(name, str) or not name or len(name) > 64 or not isinstance(key, bytes | bytearray):
                raise InvalidOptionError(f"Aes: {name!r} must be text of at most 64 characters with a key of bytes")
            if len(key) != _KEY_BYTES:
                raise InvalidOptionError(f"Aes: key {name!r} has {len(key)} bytes; 32 are needed")
        self._ciphers = {name: AESGCM(bytes(key)) for name, key in keys.items()}
        self._first = next(iter(keys))

    def __repr__(self) -> str:
        return f"Aes({', '.join(self._ciphers)})"

    def encode(self, data: bytes, bound_to: bytes) -> tuple[str, bytes] | None:
        nonce = _RANDOM.bytes(_NONCE_BYTES)  # not from the runtime: a seeded harness would use a nonce twice
        return f"aes:{self._first}", nonce + self._ciphers[self._first].encrypt(nonce, data, bound_to)

    def decode(self, tag: str, data: bytes, bound_to: bytes) -> bytes | None:
        if not tag.startswith("aes:"):
            return None
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(tag[4:])
        if cipher is None:
            raise PayloadError(f"the value is encrypted with key {tag[4:]!r}, which this process does not have")
        try:
            return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError):
            raise PayloadError(
                f"the value does not fit key {tag[4:]!r}: it is damaged, belongs to another place, or the key is wrong"
            ) from None

    @property
    def current_tag(self) -> str:
        """The tag of values that are encoded now."""
        return f"aes:{self._first}"


class CodecChain:
    """The codecs of an app or a workflow, in the order in which they encode."""

    def __init__(self, codecs: Iterable[Codec] = ()) -> None:
        self.codecs = tuple(codecs)

    @property
    def encrypts(self) -> bool:
        return any(codec.encrypts for codec in self.codecs)

    def encode(self, data: bytes, bound_to: bytes) -> tuple[list[str], bytes]:
        tags: list[str] = []
        for codec in self.codecs:
            encoded = codec.encode(data, bound_to)
            if encoded is not None:
                tags.append(encoded[0])
                data = encoded[1]
        return tags, data

    def decode(self, tags: Iterable[str], data: bytes, bound_to: bytes) -> bytes:
        for tag in reversed([*tags]):
            data = self._decode(tag, data, bound_to)
        return data

    def _decode(self, tag: str, data: bytes, bound_to: bytes) -> bytes:
        for codec in self.codecs:
            decoded = codec.decode(tag, data, bound_to)
            if decoded is not None:
                return decoded
        raise PayloadError(f"the value was encoded by {tag.partition(':')[0]!r}, a codec that this app does not have")


def check_codec(codec: Any) -> CodecChain | None:
    """The chain of the option ``codec=``: a codec, several, or None."""
    if codec is None:
        return None
    codecs: Any = [codec] if isinstance(codec, Codec | type) else codec
    if isinstance(codecs, str | bytes) or not isinstance(codecs, Iterable):
        raise InvalidOptionError(f"codec must be a list of codecs such as Zstd() and Aes(keys), not {codec!r}")
    chain = CodecChain(codecs)
    for link in chain.codecs:
        if isinstance(link, type) or not isinstance(link, Codec):
            raise InvalidOptionError(
                f"codec={link!r} is not a codec; use Zstd(), Aes(keys), or a class with its methods"
            )
    encrypting = [n for n, link in enumerate(chain.codecs) if link.encrypts]
    if encrypting and encrypting[0] != len(chain.codecs) - 1:
        raise InvalidOptionError("codec: encryption comes last, because encrypted values cannot be compressed")
    return chain
