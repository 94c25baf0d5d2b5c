"""Answers to the probes of an orchestrator: ``/healthz`` and ``/readyz``, without authorization and without details.

``/healthz`` says that the process serves requests: if it fails, the process should be restarted. ``/readyz`` says that
the database answers as well: while it fails, the process should get no requests. A database that is down must not
make the orchestrator restart all processes, so ``/healthz`` does not ask it.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError

_log = logging.getLogger("holdfast")

PATHS = ("/healthz", "/readyz")
_SECONDS = 2.0
"""Time for the database to answer. Probes of Kubernetes wait for one second unless they say otherwise."""


async def health(app: Holdfast, path: str) -> tuple[int, bytes]:
    """The status and the body of the response to a probe."""
    if path == "/healthz":
        return 200, b"ok\n"
    try:
        async with asyncio.timeout(_SECONDS):
            await app.workers()
    except (HoldfastError, OSError) as error:  # a TimeoutError is an OSError
        _log.warning("not ready: the database does not answer: %s", error or type(error).__name__)
        return 503, b"the database does not answer\n"
    return 200, b"ok\n"
