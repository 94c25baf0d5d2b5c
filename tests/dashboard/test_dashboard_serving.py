"""The files of the dashboard: hashes, caching, compression, security headers, mount points."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from dashboard_app import browser, make_app
from fastapi import FastAPI

from holdfast.dashboard.assets import Assets
from holdfast.dashboard.site import make_dashboard
from holdfast.http.auth import Authorize
from holdfast.http.backend import Backend


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text('<script type="module" src="./static/app.js"></script>')
    (tmp_path / "app.js").write_text("import './vendor/view.js';" * 100)
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "view.js").write_text("export {}")
    (tmp_path / "notes.md").write_text("not served")
    return tmp_path


def site_of(files: Path, **options: object) -> object:
    app = make_app(guarded=False)
    backend = Backend(app.registry, app.limits, app._client_for_request, None, app.runtime.time.now)
    return make_dashboard(
        backend,
        authorize=Authorize(),
        runtime=app.runtime,
        hosts=(),
        insecure=False,
        lifespan=app.lifespan,
        assets=Assets(files),
    )


async def test_files_are_cached_for_ever_under_a_hash_of_all_files(files: Path) -> None:
    async with browser(site_of(files)) as http:
        page = await http.get("")
        tree = Assets(files).hash
        script = await http.get(f"static/{tree}/app.js")
        nested = await http.get(f"static/{tree}/vendor/view.js")

        assert page.text == f'<script type="module" src="./static/{tree}/app.js"></script>'
        assert page.headers["cache-control"] == "no-cache"
        assert (script.status_code, nested.text) == (200, "export {}")
        assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        for missing in ("app.js", f"static/{'0' * 16}/app.js", f"static/{tree}/notes.md", f"static/{tree}/../site.py"):
            assert (await http.get(missing)).status_code == 404, missing
    (files / "vendor" / "view.js").write_text("export {}; ")
    assert Assets(files).hash != tree


async def test_an_unchanged_file_is_not_sent_again(files: Path) -> None:
    async with browser(site_of(files)) as http:
        for url in ("", f"static/{Assets(files).hash}/app.js"):
            first = await http.get(url)
            tag = first.headers["etag"]
            for given in (tag, f'"other", W/{tag}', "*"):
                again = await http.get(url, headers={"if-none-match": given})
                assert (again.status_code, again.content) == (304, b"")
            assert (await http.get(url, headers={"if-none-match": '"other"'})).status_code == 200


async def test_files_are_compressed_for_clients_that_accept_it(files: Path) -> None:
    url = f"static/{Assets(files).hash}/app.js"
    async with browser(site_of(files)) as http:
        plain = await http.get(url, headers={"accept-encoding": "identity"})
        async with http.stream("GET", url, headers={"accept-encoding": "br, gzip;q=0.5"}) as response:
            raw = b"".join([chunk async for chunk in response.aiter_raw()])

    assert response.headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw) == plain.content
    assert "content-encoding" not in plain.headers
    assert "accept-encoding" in plain.headers["vary"]


async def test_the_page_allows_no_foreign_content_and_no_frames(files: Path) -> None:
    async with browser(site_of(files)) as http:
        for url in ("", f"static/{Assets(files).hash}/app.js", "static/none"):
            headers = (await http.get(url)).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("path", ["", "/flows", "/a/b"])
async def test_the_dashboard_works_under_any_path(path: str) -> None:
    app = make_app(guarded=False)
    web = FastAPI()
    web.mount(path or "/", app.dashboard())
    async with app, browser(web, f"http://127.0.0.1{path}/") as http:
        page = await http.get("")
        me = await http.get("_api/_me")
        document = await http.get("_api/openapi.json")

    assert page.status_code == 200
    assert (me.status_code, me.json()["authorization"]) == (200, False)
    assert document.json()["servers"][0]["url"].endswith(f"{path}/_api")


async def test_an_app_without_hooks_is_shown_on_loopback_addresses_only() -> None:
    app = make_app(guarded=False)
    async with app:
        for base, status in (("http://127.0.0.1", 200), ("http://localhost", 200), ("http://192.0.2.1", 403)):
            async with browser(app.dashboard(), base) as http:
                assert (await http.get("/")).status_code == status
                assert (await http.get("/_api/_me")).status_code == status
        async with browser(app.dashboard(insecure=True), "http://192.0.2.1") as http:
            assert (await http.get("/_api/_me")).status_code == 200
    guarded = make_app()
    async with guarded, browser(guarded.dashboard(), "http://192.0.2.1") as http:
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/_api/_me")).status_code == 401


async def test_the_lifespan_of_a_directly_served_dashboard_opens_the_app() -> None:
    app = make_app(guarded=False)
    site = app.dashboard()
    async with site.router.lifespan_context(site), browser(site) as http:
        assert (await http.get("_api/_health")).status_code == 200
    async with browser(site) as http:
        assert (await http.get("_api/_health")).status_code == 503
