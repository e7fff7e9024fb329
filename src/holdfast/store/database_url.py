"""Addresses of databases: what one has to be, and how it is shown to people."""

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

FAULT: Final = "must be written postgresql://<user>:<password>@<host>:<port>/<database>"
_FILES: Final = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl"})


def url_fault(url: str | None) -> str | None:
    """Return what is wrong with an address; never the address, which may hold a password."""
    if url is None:
        return None
    try:
        is_right = urlsplit(url).scheme in {"postgres", "postgresql"}
        # What cannot be sent: half of a surrogate pair has no bytes, and a NUL ends every text.
        is_right = is_right and b"\x00" not in unquote(url).encode()
    except ValueError:
        return FAULT
    return None if is_right else FAULT


def missing_file(url: str) -> str | None:
    """Return which parameter of an address names a file that is not there."""
    named = parse_qsl(urlsplit(url).query)
    return next((name for name, file in named if name in _FILES and not Path(file).exists()), None)


def shown_url(url: str) -> str:
    """Return an address as it may be shown: without what opens it."""
    parts = urlsplit(url)
    # An address in brackets has colons of its own.
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def password_of(url: str) -> str | None:
    """Return the password that an address holds."""
    found = urlsplit(url).password
    return None if found is None else unquote(found)
