"""``PayloadConfig``: the options ``codec=``, ``blobs=`` and ``blob_threshold=`` of an app, and the store they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from holdfast.core.limits import Limits
from holdfast.errors import DefinitionError
from holdfast.payloads.blobs import check_blobs, make_blobs, parse_size
from holdfast.payloads.codecs import CodecChain, check_codec
from holdfast.payloads.sealing import SealSettings
from holdfast.payloads.store import PayloadStore
from holdfast.ports import SystemRandomness
from holdfast.store.protocol import Store

_RANDOM = SystemRandomness()
"""Ids of blobs. Not from the runtime: a seeded harness would write other data under the same ids."""


@dataclass(frozen=True, slots=True)
class PayloadConfig:
    chain: CodecChain | None = None
    blobs: str | None = None
    threshold: int = 64 * 1024

    def wrap(self, store: Store, by_workflow: Mapping[str, CodecChain | None], limits: Limits) -> Store:
        """The store that encodes values and writes blobs."""
        threshold = None if self.blobs is None else self.threshold
        settings = SealSettings(self.chain, by_workflow, threshold, limits.blob)
        blobs = None
        if self.blobs is not None:
            blobs = make_blobs(self.blobs, store, lambda: store.clock.now().timestamp())
        return cast("Store", PayloadStore(store, settings, blobs, lambda: _RANDOM.uuid4().hex))

    def check_secret(self, what: str, chain: CodecChain | None) -> None:
        """Raise ``DefinitionError`` unless values of ``what``, which has a ``Secret``, are encrypted."""
        effective = chain or self.chain
        if effective is None or not effective.encrypts:
            raise DefinitionError(
                f"{what} has a Secret[...] in its annotations, and its values are not encrypted; "
                "give the app a key: Holdfast(codec=[Aes({'k1': key})])"
            )


def payload_config(codec: Any, blobs: Any, threshold: Any) -> PayloadConfig:
    """Check the options of an app."""
    return PayloadConfig(check_codec(codec), check_blobs(blobs), parse_size(threshold))
