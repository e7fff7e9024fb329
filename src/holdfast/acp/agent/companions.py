"""The `mcpServers` of a client, as entries that the house knows how to start or reach."""

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.acp.agent.refusals import bad_params

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")
_NAME_LONGEST: Final = 64


class Pair(Struct, frozen=True):
    """A variable, or a header."""

    name: str
    value: str


class StdioEntry(Struct, frozen=True):
    """A program."""

    name: str
    command: str
    args: list[str] = []
    env: list[Pair] = []


class HttpEntry(Struct, frozen=True):
    """An address."""

    name: str
    url: str
    headers: list[Pair] = []


def companions(servers: list[Any]) -> tuple[dict[str, Any], ...]:
    """Return the servers that a client names; what we have not offered to reach is refused."""
    return tuple(map(_entry, servers))


def _entry(given: Any) -> dict[str, Any]:
    kind = given.get("type", "stdio") if isinstance(given, dict) else None
    try:
        if kind == "http":
            return _http(msgspec.convert(given, HttpEntry))
        if kind == "stdio":
            return _stdio(msgspec.convert(given, StdioEntry))
    except msgspec.ValidationError as error:
        raise bad_params(f"mcpServers is not valid: {error}.") from None
    raise bad_params("mcpServers are programs, or addresses of type http.")


def _stdio(given: StdioEntry) -> dict[str, Any]:
    return {
        "id": _id(given.name),
        "transport": "stdio",
        "command": given.command,
        "args": given.args,
        "env": {each.name: each.value for each in given.env},
    }


def _http(given: HttpEntry) -> dict[str, Any]:
    return {
        "id": _id(given.name),
        "transport": "http",
        "url": given.url,
        "headers": {each.name: each.value for each in given.headers},
    }


def _id(name: str) -> str:
    return _NOT_IN_A_NAME.sub("-", name)[:_NAME_LONGEST] or "server"
