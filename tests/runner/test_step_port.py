"""Every kind of step is called through a port, which a harness or a simulation replaces."""

from __future__ import annotations

from pathlib import Path

from holdfast import Context, Holdfast, StepTx, Transaction


async def test_every_kind_of_step_is_called_through_the_port(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/app.db")
    called: list[str] = []

    @app.step
    async def in_the_loop() -> int:
        return 1

    @app.step
    def in_a_thread() -> int:
        return 2

    @app.step
    async def with_statements(tx: StepTx) -> int:
        return 3

    @app.step
    async def in_a_transaction(tx: Transaction) -> int:
        return 4

    @app.workflow
    async def all_kinds(_ctx: Context) -> list[int]:
        return [await in_the_loop(), await in_a_thread(), await with_statements(), await in_a_transaction()]

    def recording(call):
        called.append(call.key)
        return call.function

    async with app:
        app._opened().ports.function = recording
        assert await (await app.start(all_kinds)).result(timeout=60) == [1, 2, 3, 4]

    assert called == ["in_the_loop", "in_a_thread", "with_statements", "in_a_transaction"]
