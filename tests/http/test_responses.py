"""Answers that are not sent twice, or not at full length."""

import pytest

from tests.http.v1.client import Visitor

pytestmark = pytest.mark.anyio


async def test_only_who_reads_is_told_to_keep_what_they_have(quiet_visitor: Visitor) -> None:
    made = await quiet_visitor.post(
        "/v1/agents", {"name": "A", "system_prompt": ""}, if_none_match="*"
    )
    path = f"/v1/agents/{made.document['id']}"
    same = await quiet_visitor.get(path, if_none_match=made.headers["etag"])

    assert made.status == 201
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", made.headers["etag"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("wish", "is_packed"),
    [
        ("gzip", True),
        ("*", True),
        ("br, gzip;q=0.5", True),
        ("*;q=0, gzip", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("br", False),
        ("", False),
    ],
)
async def test_large_answers_are_packed_for_whoever_can_unpack_them(
    quiet_visitor: Visitor, wish: str, is_packed: bool
) -> None:
    answer = await quiet_visitor.get("/openapi.json", accept_encoding=wish)

    assert ("content-encoding" in answer.headers) is is_packed
    assert answer.headers["etag"].endswith('-gzip"') is is_packed
