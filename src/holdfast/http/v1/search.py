"""Full-text search over messages and observations."""

from typing import Final

from holdfast.domain.errors import Code
from holdfast.http.responses import Response
from holdfast.http.routing import RouteRequest, Routes
from holdfast.wire.errors import as_query_errors
from holdfast.wire.search import HitList, SearchForm, hit_form, query_of

routes: Final = Routes()


@routes.get("/v1/search", "search", HitList, errors=(Code.AGENT_NOT_FOUND,))
async def search(request: RouteRequest[SearchForm, None]) -> Response:
    """Search messages, tools, titles and observations, newest session first."""
    with as_query_errors():
        page = await request.holdfast.search.find(
            request.owner, query_of(request.query), cursor=request.query.cursor
        )
    return Response(content=HitList(tuple(map(hit_form, page.items)), page.next_cursor))
