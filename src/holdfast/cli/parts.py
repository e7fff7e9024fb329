"""Which module brings which commands: only what a line names is loaded, because loading is slow."""

from collections.abc import Iterable
from importlib import import_module
from typing import Final, Protocol, cast

import typer

# In the order in which help lists them.
HOMES: Final = {
    "chat": ("chat", "chat-resume"),
    "sessions": ("sessions", "chat-list", "chat-export"),
    "search": ("search",),
    "approvals": ("approvals",),
    "calls": ("calls",),
    "costs": ("costs",),
    "agents": ("agents",),
    "zones": ("zones",),
    "repos": ("repos",),
    "keys": ("key",),
    "tokens": ("token",),
    "workflows": ("workflow",),
    "history": ("history",),
    "timeline": ("timeline",),
    "acp": ("acp",),
    "mcp": ("mcp",),
    "serve": ("serve",),
    "imports": ("import",),
    "store": ("backup", "restore", "salvage", "migrate"),
    "copy": ("copy",),
    "doctor": ("doctor",),
    "configuration": ("config",),
}


class Part(Protocol):
    """A module of the command line."""

    def register(self, app: typer.Typer) -> None:
        """Add the module's commands."""


def homes_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the modules whose commands a line may mean; all of them when it names none."""
    named = set(words)
    return tuple(home for home, names in HOMES.items() if named & set(names)) or tuple(HOMES)


def part(home: str) -> Part:
    """Return a module of the command line, loaded."""
    return cast(Part, import_module(f"holdfast.cli.{home}"))
