"""The settings of the garbage collector that a program asks for."""

from __future__ import annotations

import gc

import holdfast
from holdfast.core.collector import THRESHOLDS


def test_tune_collector_freezes_loaded_objects_and_makes_collections_rare() -> None:
    before = gc.get_threshold()
    try:
        holdfast.tune_collector()

        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > 0
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
