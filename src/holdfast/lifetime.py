"""``AppLifetime`` opens and closes an app. The engine is imported when an app is first opened, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import AppClosedError
from holdfast.ports import LocalSpawn, LoopTimers
from holdfast.store_url import make_store

if TYPE_CHECKING:
    from holdfast.open_app import App, OpenApp


class AppLifetime:
    """Opens and closes an app. While a test harness is open, the harness takes the place of the app's database."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.opened: OpenApp | None = None
        self.harnesses: list[OpenApp] = []
        """Open test harnesses; the newest is the last."""
        self._harness_entries = 0
        """Number of ``async with`` blocks of the app that are open inside a harness."""

    @property
    def current(self) -> OpenApp | None:
        return self.harnesses[-1] if self.harnesses else self.opened

    async def enter(self, *, with_worker: bool) -> None:
        if self.harnesses:
            self._harness_entries += 1
            return
        app = self._app
        if self.opened is not None:
            raise AppClosedError(f"{app!r} is open already; one `async with` at a time")
        from holdfast.open_app import OpenApp  # noqa: PLC0415  (worker and client: most of the engine, used from here on)

        app.registry.check()
        store = make_store(app.url, app.schema, app.runtime)
        await store.open()
        self.opened = OpenApp(app, store, LoopTimers(store.clock), LocalSpawn())
        if with_worker:
            await self.opened.reconcile()
            self.opened.start_worker(app.worker_config)

    async def leave(self) -> None:
        if self._harness_entries:
            self._harness_entries -= 1
            return
        opened, self.opened = self.opened, None
        if opened is not None:
            await opened.close()
