"""Codecs and blob stores: how values are encoded before they are stored, and where large values go.

Public names for programs. The engine uses ``PayloadStore`` (``store.py``), which encodes and decodes at the edge of the
database; an app without ``codec=`` and ``blobs=`` does not load it.
"""

from holdfast.core.blob import Blob
from holdfast.core.secret import Secret
from holdfast.payloads.codecs import Aes, Codec, Zstd

__all__ = ["Aes", "Blob", "Codec", "Secret", "Zstd"]
