"""Who asks, with what, and from which page."""

import pytest

from holdfast.domain.tokens import Scope
from holdfast.http.app import V1_ROUTES
from holdfast.http.auth import COOKIE, MODEL_FIELDS
from holdfast.wire.scalars import ModelRef
from tests.http.asgi import Answer, ask
from tests.http.v1.client import A_STRANGER, HOST, Visitor, refusal
from tests.marks import each_case

pytestmark = pytest.mark.anyio

Header = tuple[str, str]


async def sent(visitor: Visitor, method: str, path: str, *headers: Header) -> Answer:
    """Send a request with these headers and no other credentials."""
    raw = [("host", HOST), ("content-type", "application/json"), *headers]
    encoded = [(name.encode(), value.encode()) for name, value in raw]
    return await ask(visitor.app, path, method=method, headers=encoded, body=b"{}")


async def signed_in(visitor: Visitor, scope: Scope = Scope.ADMIN) -> str:
    """Return the secret in the cookie of somebody who has opened a sign-in link."""
    code = await visitor.house.tokens.sign_in_code(visitor.house.owner, scope)
    answer = await sent(visitor, "GET", f"/sign-in?code={code}")
    return answer.headers["set-cookie"].partition("=")[2].partition(";")[0]


async def test_a_link_is_exchanged_for_a_cookie_once(quiet_visitor: Visitor) -> None:
    tokens = quiet_visitor.house.tokens
    code = await tokens.sign_in_code(quiet_visitor.house.owner, Scope.ADMIN)

    first = await sent(quiet_visitor, "GET", f"/sign-in?code={code}")
    again = await sent(quiet_visitor, "GET", f"/sign-in?code={code}")

    cookie, *flags = first.headers["set-cookie"].split("; ")
    assert (first.status, first.headers["location"], first.body) == (303, "/", b"")
    assert flags == ["Path=/", "Max-Age=2592000", "HttpOnly", "SameSite=Strict"]
    assert cookie.startswith(f"{COOKIE}=hf_")
    assert (await sent(quiet_visitor, "GET", "/v1/agents", ("cookie", cookie))).status == 200
    assert refusal(again) == (401, "unauthenticated")
    assert "`holdfast token link`" in again.document["message"]


@pytest.mark.parametrize(
    ("method", "header", "status"),
    [
        ("GET", ("sec-fetch-site", "cross-site"), 403),
        ("GET", ("sec-fetch-site", "same-site"), 403),
        ("GET", ("origin", "http://evil.example"), 403),
        ("GET", ("sec-purpose", "prefetch;prerender"), 403),
        ("HEAD", ("accept", "*/*"), 401),
        ("POST", ("accept", "*/*"), 401),
    ],
)
async def test_only_its_reader_spends_a_code(
    quiet_visitor: Visitor, method: str, header: Header, status: int
) -> None:
    house = quiet_visitor.house
    code = await house.tokens.sign_in_code(house.owner, Scope.ADMIN)

    refused = await sent(quiet_visitor, method, f"/sign-in?code={code}", header)
    own = await sent(quiet_visitor, "GET", f"/sign-in?code={code}", ("sec-fetch-site", "none"))

    assert (refused.status, own.status) == (status, 303)


async def test_a_token_may_not_take_the_cookies_place(quiet_visitor: Visitor) -> None:
    answer = await sent(
        quiet_visitor, "GET", "/v1/agents", ("cookie", f"{COOKIE}={quiet_visitor.secret}")
    )

    assert refusal(answer) == (401, "unauthenticated")


async def test_other_cookies_of_this_machine_are_passed_over(quiet_visitor: Visitor) -> None:
    secret = await signed_in(quiet_visitor)
    beside = f'a={{"b": "c"}}; =; x; é=1; {COOKIE}x=2; {COOKIE}={secret}; "'

    assert (await sent(quiet_visitor, "GET", "/v1/agents", ("cookie", beside))).status == 200


async def test_of_two_cookies_none_is_believed(quiet_visitor: Visitor) -> None:
    secret = await signed_in(quiet_visitor)
    both = f"{COOKIE}=hf_another; {COOKIE}={secret}"

    answer = await sent(quiet_visitor, "GET", "/v1/agents", ("cookie", both))

    assert refusal(answer) == (401, "unauthenticated")


@each_case(
    ("headers", "status"),
    [
        ([], 403),
        ([("sec-fetch-site", "none")], 403),
        ([("sec-fetch-site", "cross-site"), ("origin", f"http://{HOST}")], 403),
        ([("origin", "null")], 403),
        ([("origin", f"http://{HOST}"), ("origin", f"http://{HOST}")], 403),
        ([("sec-fetch-site", "same-origin")], 400),
        ([("origin", f"http://{HOST}")], 400),
        ([("origin", "http://localhost:8765"), ("sec-fetch-site", "same-origin")], 400),
    ],
)
async def test_a_cookie_changes_something_only_from_our_page(
    quiet_visitor: Visitor, headers: list[Header], status: int
) -> None:
    cookie = ("cookie", f"{COOKIE}={await signed_in(quiet_visitor)}")

    answer = await sent(quiet_visitor, "POST", "/v1/agents", cookie, *headers)

    # What is let through is refused for its empty body.
    assert answer.status == status


async def test_of_two_headers_with_credentials_none_is_believed(quiet_visitor: Visitor) -> None:
    good = ("authorization", f"Bearer {quiet_visitor.secret}")

    answers = [
        await sent(quiet_visitor, "GET", "/v1/agents", good, other)
        for other in (good, ("authorization", "Basic x"))
    ]

    assert [refusal(each) for each in answers] == [(401, "unauthenticated")] * 2


@each_case("field", MODEL_FIELDS)
async def test_only_an_admin_names_a_file_of_this_machine(
    quiet_visitor: Visitor, field: str
) -> None:
    writer = await quiet_visitor.as_("local", Scope.WRITE)
    named = "scripted:/etc/passwd"
    value = [named] if field == "fallback_model_ids" else named
    path = f"/v1/agents/{A_STRANGER}"
    paths = [f"{path}/sessions", f"/v1/sessions/{A_STRANGER}/fork"]
    posts = {"model_id": paths}.get(field, ["/v1/agents"])

    for post in posts:
        body = (
            {field: value}
            if field == "model_id"
            else {"name": "A", "system_prompt": "", field: value}
        )
        refused = await writer.post(post, body)
        heard = await quiet_visitor.post(post, body)
        assert refusal(refused) == (403, "forbidden")
        assert refused.document["details"] == {"needed": "admin", "scope": "write"}
        assert heard.status != 403


def test_every_field_that_takes_a_model_is_looked_at() -> None:
    import msgspec

    bodies = {
        each for route in V1_ROUTES for each in getattr(route.body, "__args__", (route.body,))
    }
    taking = {
        field.encode_name
        for body in bodies - {None, bytes}
        for field in msgspec.structs.fields(body)
        if _mentions(field.type)
    }

    assert taking == set(MODEL_FIELDS)


def _mentions(kind: object) -> bool:
    return kind == ModelRef or any(map(_mentions, getattr(kind, "__args__", ())))
