"""Searching a server."""

from msgspec.structs import replace

from holdfast.client.listings import Listing
from holdfast.client.requests import Requests
from holdfast.http.v1.search_forms import HitForm, HitList, SearchForm


class Search:
    """Everything that was said and claimed, by its words."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def find(self, query: SearchForm | str) -> Listing[HitForm]:
        """Find words, the newest session first; a text alone is searched everywhere."""
        wanted = SearchForm(q=query) if isinstance(query, str) else query

        async def fetch(cursor: str | None) -> HitList:
            asked = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get("/v1/search", HitList, asked)

        return Listing(fetch)
