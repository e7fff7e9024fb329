"""What a client says with each request: the fields that we read; all others are passed over."""

from typing import Any

from msgspec import Struct


class Opening(Struct, frozen=True, rename="camel"):
    """What opens a session: where, and with which servers of the client."""

    cwd: str
    mcp_servers: list[Any] = []


class Reopening(Struct, frozen=True, rename="camel"):
    """What picks a session up."""

    session_id: str
    cwd: str
    mcp_servers: list[Any] = []


class Named(Struct, frozen=True, rename="camel"):
    """What is about one session."""

    session_id: str


class Prompted(Struct, frozen=True, rename="camel"):
    """What a person says."""

    session_id: str
    prompt: list[Any]


class ModeWish(Struct, frozen=True, rename="camel"):
    """Another mode."""

    session_id: str
    mode_id: str


class OptionWish(Struct, frozen=True, rename="camel"):
    """Another value of an option."""

    session_id: str
    config_id: str
    value: Any = None


class ListWish(Struct, frozen=True, rename="camel"):
    """Which sessions."""

    cwd: str | None = None
    cursor: str | None = None
