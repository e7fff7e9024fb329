"""Searching everything that was said and claimed."""

from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.tokens import Scope
from holdfast.http.responses import Answer
from holdfast.http.routing import Asked, Route
from holdfast.wire.errors import query_judged
from holdfast.wire.search import HitList, SearchForm, hit_form, query_of


async def search(asked: Asked[SearchForm, None]) -> Answer:
    """Find words in messages, tools, titles and observations."""
    with query_judged():
        page = await asked.house.search.find(
            asked.owner, query_of(asked.query), cursor=asked.query.cursor
        )
    return Answer(content=HitList(tuple(map(hit_form, page.items)), page.next_cursor))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/search",
        name="search",
        summary="Find words in messages, tools, titles and observations, newest session first.",
        act=search,
        needs=Scope.READ,
        query=SearchForm,
        gives={200: HitList},
        refuses=(Code.AGENT_NOT_FOUND,),
    ),
)
