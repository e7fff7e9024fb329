"""Listings that go on over all their pages, one request for each page that is needed."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Page(Protocol[T_co]):
    """A page as every list of the server is: its entries, and where the next page starts."""

    @property
    def data(self) -> tuple[T_co, ...]: ...
    @property
    def next_cursor(self) -> str | None: ...


class Listing(Generic[T_co]):
    """A listing that nobody has asked for yet: iterate over all of it, or take single pages."""

    def __init__(self, fetch: Callable[[str | None], Awaitable[Page[T_co]]]) -> None:
        self._fetch = fetch

    async def __aiter__(self) -> AsyncIterator[T_co]:
        """Yield every entry; a page is asked for when the one before it is used up."""
        cursor = None
        while True:
            page = await self._fetch(cursor)
            for entry in page.data:
                yield entry
            cursor = page.next_cursor
            if cursor is None:
                return

    async def page(self, cursor: str | None = None) -> Page[T_co]:
        """Return one page: the first, or the one that a cursor of an earlier page leads to."""
        return await self._fetch(cursor)

    async def all(self) -> list[T_co]:
        """Return every entry at once."""
        return [entry async for entry in self]
