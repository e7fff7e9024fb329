"""Database URLs: validation, and display without credentials."""

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

FAULT: Final = "must be written postgresql://<user>:<password>@<host>:<port>/<database>"
_FILES: Final = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl"})


def url_fault(url: str | None) -> str | None:
    """Return what is wrong with a URL; never the URL itself, because it may contain a password."""
    if url is None:
        return None
    try:
        is_right = urlsplit(url).scheme in {"postgres", "postgresql"}
        # Neither can be sent: a lone surrogate has no UTF-8 encoding, and NUL ends a C string.
        is_right = is_right and b"\x00" not in unquote(url).encode()
    except ValueError:
        return FAULT
    return None if is_right else FAULT


def missing_file(url: str) -> str | None:
    """Return the URL parameter that names a missing file."""
    named = parse_qsl(urlsplit(url).query)
    return next((name for name, file in named if name in _FILES and not Path(file).exists()), None)


def shown_url(url: str) -> str:
    """Return a URL without credentials and parameters, safe to display."""
    parts = urlsplit(url)
    # Split at `@`, not at `:`, because an IPv6 address in brackets contains colons.
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def password_of(url: str) -> str | None:
    """Return the password in a URL."""
    found = urlsplit(url).password
    return None if found is None else unquote(found)
