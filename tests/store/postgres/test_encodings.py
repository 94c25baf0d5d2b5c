"""Databases whose encoding is not UTF-8: values are bytes, so any text is stored exactly."""

from __future__ import annotations

import json

import asyncpg
import pytest

from holdfast import Context, Holdfast
from postgres_server import execute, server

TEXT = "naïve я 😀 \ud800 \0"


@pytest.mark.promise("clear-errors")
async def test_a_latin1_database_holds_any_text_and_shows_it() -> None:
    await execute(
        server().url(), "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    app = Holdfast(server().url("latin"))
    graph = app.graph("etl")

    @graph.node
    async def one(params: str) -> str:
        return params

    @app.workflow
    async def flow(_ctx: Context, text: str) -> str:
        return text

    async with app:
        assert await (await app.start(flow, TEXT)).result(timeout=60) == TEXT
        run = await app.start(graph, TEXT)
        assert await run.result(timeout=60) == {"one": TEXT}
    connection = await asyncpg.connect(app.url)
    try:
        [value] = await connection.fetch("SELECT value FROM holdfast.holdfast_graph_fact WHERE key = 'result/one'")
        assert json.loads(value[0])["data"] == TEXT
    finally:
        await connection.close()
        await execute(server().url(), "DROP DATABASE latin WITH (FORCE)")
