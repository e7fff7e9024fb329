"""Connect to a Postgres server with durable settings; raise with the reason otherwise."""

import asyncio
import ssl
import time
from typing import Final

import asyncpg

from holdfast.domain.errors import Code, HoldfastError, Invalid, Unavailable
from holdfast.store.database_url import FAULT, missing_file, url_fault
from holdfast.store.postgres.connection import PostgresConnection, connect
from holdfast.store.postgres.errors import GONE, REFUSED, meaning

OLDEST: Final = 150_000
# Seconds to retry while a server restarts.
RECONNECT_TIMEOUT: Final = 10.0
_RETRY_SECONDS: Final = 0.05

SERVER_SETTINGS = """
-- Server settings that durable commits require.
SELECT CAST(current_setting('server_version_num') AS INTEGER), current_setting('server_encoding'),
       current_setting('fsync'), current_setting('full_page_writes'),
       current_setting('synchronous_commit'), pg_is_in_recovery(),
       current_setting('transaction_read_only')
"""


class Link:
    """Opens connections to one database; retries for up to `RECONNECT_TIMEOUT` seconds."""

    def __init__(self, url: str) -> None:
        if url_fault(url) is not None:
            raise _unreadable()
        self._url = url

    async def open(self, *, may_write: bool = False) -> PostgresConnection:
        """Connect once; raise on failure."""
        try:
            raw = await connect(self._url, may_write=may_write)
        except (OSError, asyncpg.PostgresError) as error:
            refusal = _refusal(error, self._url)
            if refusal is None:
                raise
            raise refusal from None
        except (ValueError, OverflowError, asyncpg.ClientConfigurationError):
            # Drop the original message, because it may contain the URL.
            raise _unreadable() from None
        try:
            await require_safe(raw)
        except BaseException:
            raw.terminate()
            raise
        return PostgresConnection(raw, may_write=may_write)

    async def open_with_retries(self, *, may_write: bool = False) -> PostgresConnection:
        """Connect, with retries while the server is unreachable; raises after the timeout."""
        deadline = time.monotonic() + RECONNECT_TIMEOUT
        while True:
            try:
                return await self.open(may_write=may_write)
            except REFUSED as error:
                raise meaning(error) from error
            except GONE as error:
                if time.monotonic() > deadline:
                    raise meaning(error) from error
            await asyncio.sleep(_RETRY_SECONDS)


def _refusal(error: Exception, url: str) -> HoldfastError | None:
    """Return the error for a wrong URL or server setting that retries cannot fix, or None."""
    if isinstance(error, FileNotFoundError) and (name := missing_file(url)) is not None:
        return _unreadable(f"names a file in `{name}` that does not exist")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unsafe("its certificate is not valid for this host")
    # Exactly this class: asyncpg raises it if the server does not support TLS.
    if type(error) is ConnectionError:
        return _unsafe("it does not support TLS, which HOLDFAST_DATABASE_URL requires")
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, (*REFUSED, *GONE)):
        return _unreadable("uses a parameter that this Postgres does not support")
    return None


def _unreadable(why: str = FAULT) -> Invalid:
    return Invalid(
        Code.CONFIG_INVALID, f"HOLDFAST_DATABASE_URL {why}.", {"key": "store.database_url"}
    )


async def require_safe(raw: asyncpg.Connection) -> None:
    """Raise if the server settings do not guarantee durable commits."""
    version, encoding, *switches, is_replica, is_read_only = await raw.fetchrow(SERVER_SETTINGS)
    if version < OLDEST:
        raise _unsafe(
            f"Postgres {OLDEST // 10_000} or newer is needed; this is {version // 10_000}"
        )
    if encoding != "UTF8":
        raise _unsafe(f"the database must be encoded in UTF8; it is in {encoding}")
    names = ("fsync", "full_page_writes", "synchronous_commit")
    for name, value in zip(names, switches, strict=True):
        if value == "off":
            raise _unsafe(f"{name} is off, so what is acknowledged could be lost; turn it on")
    if is_replica:
        raise _unsafe("the server is a read replica; name the primary")
    if is_read_only == "on":
        raise _unsafe("default_transaction_read_only is on; turn it off")


def _unsafe(why: str) -> Unavailable:
    return Unavailable(Code.STORE_UNSAFE, f"This Postgres cannot be used: {why}.")
