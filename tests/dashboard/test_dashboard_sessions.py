"""Sign-in, cookies, CSRF tokens, roles, and hidden values."""

from __future__ import annotations

from typing import Any

import pytest
from dashboard_app import ADMIN, OPERATOR, VIEWER, browser, make_app, signed_in

from holdfast import BearerTokens
from holdfast.dashboard import sessions
from holdfast.errors import InvalidOptionError
from holdfast.testing import Harness


async def test_a_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    app = make_app()
    async with app, browser(app.dashboard()) as http:
        assert (await http.get("_api/_me")).status_code == 401
        response = await http.post("_api/_session", json={"token": OPERATOR})
        cookie = response.headers["set-cookie"]
        me = (await http.get("_api/_me")).json()

    assert OPERATOR not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path" not in cookie  # the directory of the API
    assert "Secure" not in cookie
    assert me["session"] is True
    assert me["csrfToken"] == response.json()["csrfToken"]
    assert me["expiresAt"] == response.json()["expiresAt"]
    assert me["actor"].startswith("token ")


async def test_the_cookie_is_secure_over_https() -> None:
    app = make_app()
    async with app, browser(app.dashboard(hosts=["flows.example"]), "https://flows.example/") as http:
        response = await http.post("_api/_session", json={"token": VIEWER})
    assert "Secure" in response.headers["set-cookie"]


@pytest.mark.parametrize(
    ("token", "role", "actions"),
    [
        (VIEWER, "viewer", {"read"}),
        (OPERATOR, "operator", {"read", "create", "manage", "send_event"}),
        (ADMIN, "admin", {"read", "create", "manage", "send_event", "tick", "debug", "operate"}),
    ],
)
async def test_roles_decide_what_a_session_may_do(token: str, role: str, actions: set[str]) -> None:
    app = make_app()
    async with app, browser(app.dashboard()) as http:
        headers = await signed_in(http, token)
        me = (await http.get("_api/_me")).json()
        created = await http.post("_api/waiter/instances", json={"id": "w"}, headers=headers)

    assert (me["role"], set(me["actions"])) == (role, actions)
    assert created.status_code == (200 if "create" in actions else 403)


def test_scopes_and_roles_of_tokens_can_be_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKENS", f"{VIEWER}:viewer+debug,{ADMIN}:admin")
    assert repr(BearerTokens.from_environment()) == "<BearerTokens with 2>"
    for wrong in ("owner", ["viewer", "owner"], [], ""):
        with pytest.raises(InvalidOptionError, match="or a role"):
            BearerTokens({VIEWER: wrong})


async def test_every_write_of_a_session_needs_its_csrf_token() -> None:
    app = make_app()
    async with app, browser(app.dashboard()) as http:
        headers = await signed_in(http, ADMIN)
        other = {"x-csrf-token": "0" * 64}
        for wrong in ({}, other, {"x-csrf-token": ""}, {"x-csrf-token": "ü"}):
            for method, path in (("POST", "_api/waiter/instances"), ("DELETE", "_api/_session"), ("PUT", "_api/x")):
                raw = {name: value.encode("latin-1") for name, value in wrong.items()}
                response = await http.request(method, path, json={}, headers=raw)
                assert (response.status_code, response.json()["code"]) == (403, "CSRF_TOKEN_INVALID")
        assert (await app.list()).items == []
        assert (await http.post("_api/waiter/instances", json={}, headers=headers)).status_code == 200
    async with app, browser(app.dashboard(), authorization=f"Bearer {ADMIN}") as http:  # not authorized by a cookie
        assert (await http.post("_api/waiter/instances", json={})).status_code == 200


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_write_of_a_page_of_another_site_is_refused(guarded: bool) -> None:
    app = make_app(guarded=guarded)
    async with app, browser(app.dashboard()) as http:
        headers = await signed_in(http, ADMIN) if guarded else {}
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
            sent = headers | {"sec-fetch-site": site}
            assert (await http.post("_api/waiter/instances", json={}, headers=sent)).status_code == status
        assert (await http.get("_api/_me", headers={"sec-fetch-site": "cross-site"})).status_code == 200


async def test_a_session_ends_at_sign_out() -> None:
    app = make_app()
    async with app, browser(app.dashboard()) as http:
        headers = await signed_in(http, VIEWER)
        cookies = dict(http.cookies)
        response = await http.delete("_api/_session", headers=headers)
        http.cookies.update(cookies)  # a copy of the cookie

        assert (response.json(), "Max-Age=0" in response.headers["set-cookie"]) == ({"ok": True}, True)
        assert (await http.get("_api/_me")).status_code == 401


async def test_a_session_ends_after_its_lifetime_or_when_it_is_not_used() -> None:
    async with Harness(make_app(), seed=1) as h, browser(h.app.dashboard()) as http:
        await signed_in(http, VIEWER)
        for _ in range(6):
            await h.advance("119 minutes")
            assert (await http.get("_api/_me")).status_code == 200
        await h.advance("10 minutes")
        assert (await http.get("_api/_me")).status_code == 401

        await signed_in(http, VIEWER)
        await h.advance("2 hours")
        assert (await http.get("_api/_me")).status_code == 401


async def test_a_wrong_token_begins_no_session() -> None:
    app = make_app()
    async with app, browser(app.dashboard()) as http:
        for body in ({"token": "x" * 20}, {"token": ""}, {"token": f"{VIEWER}x"}):
            response = await http.post("_api/_session", json=body)
            assert (response.status_code, response.json()["code"]) == (401, "UNAUTHORIZED")
            assert "set-cookie" not in response.headers
        for wrong in ({}, {"token": 1}, {"token": VIEWER, "more": 1}, []):
            assert (await http.post("_api/_session", json=wrong)).status_code == 400
        assert (await http.get("_api/_session")).status_code == 405
    open_app = make_app(guarded=False)
    async with open_app, browser(open_app.dashboard()) as http:
        assert (await http.post("_api/_session", json={"token": VIEWER})).status_code == 400


async def test_the_number_of_sessions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    app = make_app()
    site = app.dashboard()
    async with app, browser(site) as first, browser(site) as second, browser(site) as third:
        for http in (first, second):
            await signed_in(http, VIEWER)
        assert (await first.get("_api/_me")).status_code == 200
        await signed_in(third, VIEWER)
        assert [(await http.get("_api/_me")).status_code for http in (first, second, third)] == [200, 401, 200]


async def test_values_of_redacted_names_do_not_leave_the_server() -> None:
    app = make_app(guarded=False, redact=["iban"])
    secret: dict[str, Any] = {"password": "p4ss", "deep": [{"IBAN": "DE89"}], "note": "token=t0p", "total": 5}
    async with app, browser(app.dashboard()) as http:
        run = await app.start("waiter", secret, id="w", memo=secret)
        shown = [await http.get(f"_api/waiter/instances/w{path}") for path in ("", "/history", "/export")]
        shown.append(await http.get("_api/_instances"))
        await run.send_event("go", secret)
        await run.result(timeout=20)
        shown += [await http.get(f"_api/waiter/instances/w{path}") for path in ("", "/history", "/export", "/result")]

        assert shown[0].json()["meta"]["params"] == {
            "password": "<redacted>", "deep": [{"IBAN": "<redacted>"}], "note": "token=<redacted>", "total": 5,
        }  # fmt: skip
        for response in shown:
            assert response.status_code == 200, response.text
            assert not [word for word in ("p4ss", "DE89", "t0p") if word in response.text], response.text
        async with browser(app.asgi(), "http://127.0.0.1/api/workflows/") as api:
            assert "p4ss" in (await api.get("waiter/instances/w")).text  # the API for programs shows all
