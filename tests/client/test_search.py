"""The client's search, against a real house on a real socket."""

from datetime import UTC, datetime

import pytest

from holdfast import Holdfast
from holdfast.client import Client, SearchForm
from holdfast.domain.messages import Role
from tests.client.servers import QUICK, serving

pytestmark = pytest.mark.anyio


async def test_all_pages_are_searched_one_after_the_other(quiet: Holdfast) -> None:
    session = await quiet.open()
    for _ in range(3):
        await quiet.send(session.id, "A tide & more.")
    async with serving(quiet) as at, Client(at.url, at.secret, timeouts=QUICK) as client:
        simple = await client.search.find("tide & more").all()
        wanted = SearchForm(
            q='"tide more"', role=Role.USER, since=datetime(2020, 1, 1, tzinfo=UTC), limit=1
        )
        paged = await client.search.find(wanted).all()
        first = await client.search.find(wanted).page()

    assert [hit.message_sequence for hit in simple] == [3, 2, 1]
    assert [hit.message_sequence for hit in paged] == [3, 2, 1]
    assert first.data == (paged[0],)
    assert paged[0].snippet == "A [tide & more]."
