"""What a browser shows of a refusal: a page that says what to do; programs keep their JSON."""

import pytest

from holdfast.domain.tokens import Scope
from holdfast.http.auth import COOKIE
from tests.http.asgi import Answer, ask
from tests.http.v1.client import HOST, Visitor, refusal

pytestmark = pytest.mark.anyio

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
HTML = "text/html; charset=utf-8"


async def got(visitor: Visitor, path: str, *, accept: str = BROWSER, cookie: str = "") -> Answer:
    """Ask as a browser does, with its cookie if it has one."""
    raw = [("host", HOST), ("accept", accept)] + ([("cookie", cookie)] if cookie else [])
    return await ask(
        visitor.app, path, headers=[(name.encode(), value.encode()) for name, value in raw]
    )


async def signed_in(visitor: Visitor) -> tuple[str, str]:
    """Return the path of a link that was used, and the cookie it gave."""
    tokens = visitor.house.tokens
    code = await tokens.sign_in_code(visitor.house.owner, Scope.ADMIN)
    _, secret = await tokens.exchange(code)
    return f"/sign-in?code={code}", f"{COOKIE}={secret}"


async def test_a_used_link_leads_who_came_in_by_it_and_tells_others_how(
    quiet_visitor: Visitor,
) -> None:
    link, cookie = await signed_in(quiet_visitor)

    known = await got(quiet_visitor, link, cookie=cookie)
    stranger = await got(quiet_visitor, link)
    program = await got(quiet_visitor, link, accept="*/*")

    assert (known.status, known.headers["location"], known.body) == (303, "/", b"")
    assert "set-cookie" not in known.headers
    assert (stranger.status, stranger.headers["content-type"]) == (401, HTML)
    assert b"This link is not valid" in stranger.body
    assert b"holdfast token link" in stranger.body
    assert refusal(program) == (401, "unauthenticated")


async def test_an_address_that_is_none_is_a_page_for_people_only(quiet_visitor: Visitor) -> None:
    _, cookie = await signed_in(quiet_visitor)

    half = await got(quiet_visitor, "/sign-in")
    nothing = await got(quiet_visitor, "/nonsense<b>", cookie=cookie)
    unknown = await got(quiet_visitor, "/nonsense")

    told = [(each.status, each.headers["content-type"]) for each in (half, nothing, unknown)]
    assert told == [(400, HTML), (404, HTML), (401, HTML)]
    assert b"Page not found" in nothing.body
    assert b"This browser is not signed in" in unknown.body
    assert all(b"<script" not in each.body for each in (half, nothing, unknown))
    assert "style-src 'sha256-" in nothing.headers["content-security-policy"]
    for accept in ("application/json", "*/*", "text/html;q=0.5, application/json", "text/html;q=x"):
        plain = await got(quiet_visitor, "/nonsense", accept=accept, cookie=cookie)
        assert refusal(plain) == (404, "path_not_found")
    assert refusal(await got(quiet_visitor, "/v1/nonsense", cookie=cookie)) == (
        404,
        "path_not_found",
    )


async def test_what_went_wrong_is_told_in_words_that_are_text(quiet_visitor: Visitor) -> None:
    raw = [(b"host", HOST.encode()), (b"accept", BROWSER.encode()), (b"sec-purpose", b"prefetch")]

    answer = await ask(quiet_visitor.app, "/sign-in?code=x", headers=raw)

    assert (answer.status, answer.headers["content-type"]) == (403, HTML)
    assert b"Open the sign-in link directly in the browser; it works once." in answer.body
