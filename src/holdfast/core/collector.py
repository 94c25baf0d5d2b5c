"""Settings of Python's cyclic garbage collector for processes that run workflows.

The engine creates no reference cycles, so a collection frees nothing of the engine but visits every live object. With
a thousand runs in flight these are about 100,000 objects, and each collection stops the process for tens of
milliseconds. Objects that exist before the work begins are excluded from collection, and collections of the rest are
rare; reference cycles in user code occupy some megabytes until the next collection.
"""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 100)


def tune_collector() -> None:
    """Make Python's garbage collector run rarely; call it after all modules are loaded and before the work begins.

    ``holdfast worker``, ``serve`` and ``dev`` call this function. A program that opens the app itself may call it too;
    nothing else of the package changes the settings of the process.

    Example::

        app = Holdfast("sqlite:///app.db")
        holdfast.tune_collector()
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
