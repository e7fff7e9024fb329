"""What a caller may say when it opens a session."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.agents import AgentOverrides
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import LOCAL_OWNER, Owner
from holdfast.domain.sessions import (
    METADATA_LARGEST,
    Budget,
    ForkRequest,
    SessionRequest,
    digest_request,
)
from holdfast.domain.tools import FsTier, Grant
from tests.builders import a_context
from tests.domain.strategies import CONTEXTS, JSON
from tests.marks import each_case


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


WISHES: dict[str, Any] = {
    "title": "Fix the build",
    "tags": ("a", "b"),
    "model": "offline:holdfast",
    "repo_id": "r-1",
    "context": a_context(),
    "grant": Grant(fs=FsTier.PROJECT),
    "tools": (),
    "approval": ApprovalMode.AUTO,
    "turn_cap": 3,
    "budget": Budget(microcents=0),
    "overrides": AgentOverrides(temperature=0.5),
    "metadata": {"ticket": {"id": 7}},
}


def test_a_caller_need_not_say_anything() -> None:
    assert SessionRequest() == SessionRequest(
        title=None,
        tags=(),
        model=None,
        repo_id=None,
        context=None,
        grant=None,
        tools=None,
        approval=None,
        turn_cap=None,
        budget=None,
        overrides=None,
        metadata={},
    )


def test_a_caller_may_say_everything() -> None:
    assert msgspec.structs.asdict(SessionRequest(**WISHES)) == WISHES


@each_case(
    "wish",
    [
        {"title": "t"},
        {"title": "t" * 255},
        {"metadata": {"k": "v" * (METADATA_LARGEST - len('{"k":""}'))}},
        {"metadata": {"k": [None, True, 1, 1.5, "a", {"b": {}}]}},
    ],
)
def test_a_wish_at_the_edge_of_its_rule_is_taken(wish: dict[str, Any]) -> None:
    assert msgspec.structs.asdict(SessionRequest(**wish)).items() >= wish.items()


@each_case(
    ("wish", "code", "field"),
    [
        ({"title": ""}, Code.INVALID_TEXT, "title"),
        ({"title": "t" * 256}, Code.INVALID_TEXT, "title"),
        ({"title": "a\x00"}, Code.INVALID_TEXT, "title"),
        ({"tags": ("",)}, Code.INVALID_TEXT, "tags"),
        ({"tags": ("a", "b", "a")}, Code.INVALID_INPUT, "tags"),
        ({"budget": Budget(microcents=-1)}, Code.INVALID_INPUT, "budget"),
        (
            {"metadata": {"k": "v" * (METADATA_LARGEST - len('{"k":""}') + 1)}},
            Code.INVALID_INPUT,
            "metadata",
        ),
        ({"metadata": {"k": "é" * (METADATA_LARGEST // 2)}}, Code.INVALID_INPUT, "metadata"),
        ({"metadata": {"k": object()}}, Code.INVALID_INPUT, "metadata"),
        ({"metadata": {"k": "\ud800"}}, Code.INVALID_INPUT, "metadata"),
        ({"metadata": {"k": nested(100_000)}}, Code.INVALID_INPUT, "metadata"),
    ],
    ids=range(11),
)
def test_a_wish_beyond_its_rule_is_refused(wish: dict[str, Any], code: Code, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        SessionRequest(**wish)

    assert (refused.value.code, refused.value.details["field"]) == (code, field)


def test_metadata_has_16_kibibytes() -> None:
    assert METADATA_LARGEST == 16_384


@each_case("wish", WISHES)
def test_another_wish_is_another_request(wish: str) -> None:
    asked = SessionRequest(**{wish: WISHES[wish]})

    same = digest_request(LOCAL_OWNER, "helper", asked)
    assert same != digest_request(LOCAL_OWNER, "helper", SessionRequest())
    assert same != digest_request(Owner("stranger"), "helper", asked)
    assert same != digest_request(LOCAL_OWNER, "other", asked)


@given(CONTEXTS, st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.data())
def test_the_same_request_is_recognised_whatever_the_order_of_its_keys(
    context: Any, metadata: dict[str, Any], data: st.DataObject
) -> None:
    shuffled = dict(data.draw(st.permutations(list(metadata.items()))))

    one = SessionRequest(context=context, metadata=metadata)
    other = SessionRequest(context=context, metadata=shuffled)

    assert digest_request(LOCAL_OWNER, "a", one) == digest_request(LOCAL_OWNER, "a", other)


@each_case(
    "asked",
    [
        SessionRequest(model="offline:\udcff"),
        SessionRequest(tools=("\udcff",)),
        SessionRequest(grant=Grant(commands=("\udcff",))),
    ],
)
def test_a_request_that_has_no_bytes_is_refused(asked: SessionRequest) -> None:
    with pytest.raises(Invalid) as refused:
        digest_request(LOCAL_OWNER, "helper", asked)

    assert refused.value.body() == {
        "error": Code.INVALID_TEXT,
        "message": "The request contains a lone surrogate; remove it.",
        "details": {},
    }


@each_case("wishes", [{"title": ""}, {"tags": ("a", "a")}, {"tags": ("",)}])
def test_the_wishes_of_a_fork_are_judged_like_those_of_an_opening(wishes: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        ForkRequest(**wishes)


def test_a_fork_may_wish_for_nothing_or_for_all() -> None:
    assert ForkRequest(title="x", tags=("a",)).at is None
    assert ForkRequest() == ForkRequest(at=None, title=None, tags=None, model=None, agent=None)


def test_a_request_that_is_no_json_cannot_be_recognised() -> None:
    with pytest.raises(Invalid) as caught:
        digest_request(LOCAL_OWNER, {"a": object()})

    assert caught.value.code is Code.INVALID_INPUT
