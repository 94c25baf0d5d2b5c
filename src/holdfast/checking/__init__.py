"""The check of open runs against new code, before the code is deployed.

Each open run is replayed on the code of this process. Nothing is written, no step is called, and no run is claimed.
"""

from holdfast.checking.checker import Checker, CheckOptions
from holdfast.checking.report import CheckReport

__all__ = ["CheckOptions", "CheckReport", "Checker"]
