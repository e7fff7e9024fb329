"""The page's own addresses: one document, its files, and what stands there without a build."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.domain.tokens import Scope
from holdfast.http.app import AppContext, Application
from holdfast.http.auth import COOKIE, Authenticator
from holdfast.http.metrics import Metrics
from holdfast.http.routing import RouteTable
from holdfast.http.security import SECURITY_HEADERS, server_names
from holdfast.http.sse import OpenStreams
from holdfast.http.web_ui import (
    ADDRESSES,
    ASSET_HEADERS,
    DOCUMENT_HEADERS,
    PLAIN_HEADERS,
    page_routes,
)
from tests.http.asgi import Answer, ask
from tests.http.v1.client import HOST, Visitor, refusal

pytestmark = pytest.mark.anyio

DOCUMENT = b"<!doctype html><script type=module src=/assets/main-1a2b.js></script>"
SCRIPT = b"const words = 'none';"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Be a folder that the page was built into."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_bytes(DOCUMENT)
    (tmp_path / "assets" / "main-1a2b.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "notes.txt").write_bytes(b"left behind")
    return tmp_path


@asynccontextmanager
async def serving(visitor: Visitor, folder: Path) -> AsyncIterator[Application]:
    """Serve the page of a folder, and nothing else."""
    metrics, names = Metrics(), server_names(8765)
    house = visitor.house
    async with OpenStreams(house, metrics, lambda: 0.5) as streams:
        rules = AppContext(names=names, name="request", metrics=metrics, streams=streams)
        callers = Authenticator(house.tokens)
        yield Application(house, RouteTable(page_routes(folder)), callers, rules)


async def got(app: Application, path: str, *headers: tuple[str, str]) -> Answer:
    """Ask as a browser does that has no credentials."""
    raw = [("host", HOST), *headers]
    return await ask(app, path, headers=[(name.encode(), value.encode()) for name, value in raw])


async def test_every_address_of_the_page_is_the_same_document(
    quiet_visitor: Visitor, built: Path
) -> None:
    async with serving(quiet_visitor, built) as app:
        for path in ADDRESSES.values():
            answer = await got(app, path.format(place="x") + "?at=7")

            assert (answer.status, answer.body) == (200, DOCUMENT)
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            expected = SECURITY_HEADERS | DOCUMENT_HEADERS
            assert expected.items() <= answer.headers.items()


async def test_the_document_is_asked_for_again_and_not_sent_again(
    quiet_visitor: Visitor, built: Path
) -> None:
    async with serving(quiet_visitor, built) as app:
        first = await got(app, "/")
        again = await got(app, "/", ("if-none-match", first.headers["etag"]))

    assert (again.status, again.body) == (304, b"")


async def test_a_file_is_kept_for_good_and_only_what_was_built_is_there(
    quiet_visitor: Visitor, built: Path
) -> None:
    async with serving(quiet_visitor, built) as app:
        script = await got(app, "/assets/main-1a2b.js")
        others = [
            await got(app, f"/assets/{name}")
            for name in ("notes.txt", "index.html", "..", "%2e%2e%2findex.html", "main-1a2b.js.map")
        ]

    assert (script.status, script.body) == (200, SCRIPT)
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert (SECURITY_HEADERS | ASSET_HEADERS).items() <= script.headers.items()
    assert [refusal(each) for each in others] == [(404, "path_not_found")] * len(others)


async def test_without_a_build_a_page_says_how_to_get_it_and_where_one_stands(
    quiet_visitor: Visitor, tmp_path: Path
) -> None:
    tokens, owner = quiet_visitor.house.tokens, quiet_visitor.house.owner
    _, secret = await tokens.exchange(await tokens.sign_in_code(owner, Scope.READ))

    async with serving(quiet_visitor, tmp_path) as app:
        stranger = await got(app, "/")
        mcp_handler = await got(app, "/sessions", ("cookie", f"{COOKIE}={secret}"))
        impostor = await got(app, "/", ("cookie", f"{COOKIE}={quiet_visitor.secret}"))
        nothing = await got(app, "/assets/main-1a2b.js")

    for answer in (stranger, mcp_handler, impostor):
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert (SECURITY_HEADERS | PLAIN_HEADERS).items() <= answer.headers.items()
        assert b"make setup" in answer.body
        assert b"<script" not in answer.body
    assert b"You are signed in." in mcp_handler.body
    assert b"holdfast token link" in stranger.body
    assert impostor.body == stranger.body
    assert refusal(nothing) == (404, "path_not_found")
