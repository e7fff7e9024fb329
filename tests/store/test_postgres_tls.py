"""Encryption on the way to Postgres: what an address asks for is had, or nothing is said at all."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, Unavailable
from holdfast.store.postgres.store import PostgresStore
from tests.tools.http_hosts import chain

pytestmark = pytest.mark.anyio

PASSWORD = "opensesame"


@asynccontextmanager
async def _answering(context: ssl.SSLContext | None) -> AsyncIterator[tuple[int, bytearray]]:
    """Answer who asks for TLS as a Postgres does; tell the port, and all that is heard after it."""
    heard, served = bytearray(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
            await reader.readexactly(8)
            writer.write(b"N" if context is None else b"S")
            await writer.drain()
            if context is not None:
                await writer.start_tls(context)
            heard.extend(await reader.read())
        writer.close()
        with suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()
        served.set()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()[1], heard
        await served.wait()


async def _refused(port: int, ending: str) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        await PostgresStore.open(f"postgresql://ada:{PASSWORD}@127.0.0.1:{port}/x?{ending}")
    assert PASSWORD not in str(caught.value.body())
    return caught.value


async def test_a_server_without_tls_is_told_nothing_where_it_is_asked_for() -> None:
    async with _answering(None) as (port, heard):
        refused = await _refused(port, "sslmode=require")

    assert (refused.code, bytes(heard)) == (Code.STORE_UNSAFE, b"")
    assert "does not support TLS" in refused.message


async def test_a_server_that_is_not_proven_is_told_nothing(tmp_path: Path) -> None:
    theirs, trusted = tmp_path / "theirs.pem", tmp_path / "trusted.pem"
    theirs.write_bytes(chain("db.example.com"))
    trusted.write_bytes(chain("other.example.com"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(theirs)
    async with _answering(context) as (port, heard):
        refused = await _refused(port, f"sslmode=verify-full&sslrootcert={trusted}")

    assert (refused.code, bytes(heard)) == (Code.STORE_UNSAFE, b"")
    assert "certificate" in refused.message
