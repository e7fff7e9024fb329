"""One request and its answer on the wire, and how they end when nobody wants the rest."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.models import StreamedResponse

_begun: ContextVar[list[Any] | None] = ContextVar("begun", default=None)


@asynccontextmanager
async def held(
    asked: AbstractAsyncContextManager["StreamedResponse"],
) -> AsyncGenerator["StreamedResponse", None]:
    """Hold an answer, and end its request when the block is left, however much is still to come.

    Not every vendor's package does that by itself: some leave it to the garbage collector.
    """
    exchanges: list[Any] = []
    try:
        with _noting(exchanges):
            response = await asked.__aenter__()
        try:
            yield response
        finally:
            await asked.__aexit__(None, None, None)
    finally:
        for exchange in exchanges:
            await exchange.aclose()


@contextmanager
def _noting(exchanges: list[Any]) -> Iterator[None]:
    token = _begun.set(exchanges)
    try:
        yield
    finally:
        _begun.reset(token)


async def note(exchange: Any) -> None:
    """Remember a response whose head has come, for whoever holds the answer."""
    if (exchanges := _begun.get()) is not None:
        exchanges.append(exchange)
