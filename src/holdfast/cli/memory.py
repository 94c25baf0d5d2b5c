"""How the processes of the command line look for garbage: seldom.

The engine leaves no circles, so Python's collector finds nothing of it and looks through all that lives, again and
again: with a thousand runs in flight some 100,000 objects, which stops the process for tens of milliseconds each time.
What was loaded before the work begins is never looked at again, and the rest only when it has grown by so many objects:
circles of users' code cost some megabytes until then.
"""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 100)


def settle() -> None:
    """Called when all is loaded and the work is about to begin."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
