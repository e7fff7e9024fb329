"""The flags that every command takes, anywhere on the line, and the configuration they lead to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from holdfast.config import Config

_SWITCHES: Final = frozenset({"--json", "-q", "--quiet", "-v", "-vv", "--verbose"})
_WITH_VALUE: Final = frozenset({"--config", "--color", "--server"})
_LEVELS: Final = {1: "info", 2: "debug"}


class Color(StrEnum):
    """When to use colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The global flags."""

    json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")
    ] = False
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Use this configuration file."),
    ] = None
    color: Annotated[Color, typer.Option("--color", help="When to use colours.")] = Color.AUTO
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Leave out what is only said for comfort.")
    ] = False
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            help="Log more; twice for everything.",
        ),
    ] = 0
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            envvar="HOLDFAST_SERVER",
            help="Work with this server instead of the store in the home; HOLDFAST_TOKEN opens "
            "it, or on this machine the home's own token.",
        ),
    ] = None
    # Here for the help only: `main` answers it before anything else is loaded.
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False

    def load(self, flags: Mapping[str, Any] | None = None) -> "Config":
        """Return the configuration, and log as it says from now on.

        `flags` are settings that a command takes itself; they can only be narrower.
        """
        from holdfast.cli.logs import configure
        from holdfast.config import load

        config = load(flags, file=self.config)
        configure(self.log_level(config.log_level))
        return config

    def log_level(self, configured: str) -> str:
        """Return the level to log at: what the flags say, else what is configured."""
        if self.verbose:
            return _LEVELS[min(self.verbose, 2)]
        return "error" if self.quiet else configured


def hoisted(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the global flags first, so that they may stand anywhere.

    What follows `--` is never a flag.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    flags: list[str] = []
    rest: list[str] = []
    words = iter(arguments[:end])
    for word in words:
        if word in _SWITCHES or word.partition("=")[0] in _WITH_VALUE:
            flags.append(word)
            if word in _WITH_VALUE:
                flags += [value for value in [next(words, None)] if value is not None]
        else:
            rest.append(word)
    return [*flags, *rest, *arguments[end:]]
