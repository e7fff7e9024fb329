"""`holdfast key set|list|remove`: the secrets in the system's keychain.

A secret is typed without an echo or read from stdin. It is never an argument, because other
processes can read arguments and shells store them in their history.
"""

import asyncio
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.options import LIMIT_MOST, Paging, argument
from holdfast.cli.output import Printer
from holdfast.cli.secrets import secrets_here
from holdfast.cli.terminal import is_terminal

if TYPE_CHECKING:
    from holdfast.domain.errors import Invalid
    from holdfast.services.secrets import StoredSecret


@dataclass(frozen=True, kw_only=True)
class OneKey:
    """A key by its name."""

    key: Annotated[
        str,
        argument(
            "KEY",
            "A provider (openai), one of several keys of a provider (openai:work), an MCP"
            " server (mcp:NAME) or a host (host:NAME).",
        ),
    ]


def set_key(printer: Printer, options: OneKey) -> None:
    """Store a key in the system keychain.

    Prompts without echo, or reads stdin; an existing key is replaced.
    """
    from holdfast.domain.secrets import SHORTEST, Secret
    from holdfast.services.secrets import whole_account

    secrets = secrets_here()
    # Before the prompt, so that a wrong name is refused at once.
    account = whole_account(options.key)
    secret = Secret(_prompt_key(account) if is_terminal(sys.stdin) else _read_key())
    asyncio.run(secrets.set(account, secret))
    if len(secret.reveal()) < SHORTEST:
        printer.warn(f"The key has fewer than {SHORTEST} characters, too few to mask it in texts.")
    printer.done({"account": account}, f"Stored the key {account} in the keychain.")


def show_list(printer: Printer, options: Paging) -> None:
    """List the keys and their sources.

    Shows the last four characters of a key, and none of a short key.
    """
    from holdfast.domain.queries import require_limit

    limit = require_limit(options.limit, most=LIMIT_MOST)
    found = asyncio.run(secrets_here().list())
    rest = [each for each in found if options.cursor is None or _place(each) > options.cursor]
    shown = sorted(rest, key=_place)[:limit]
    printer.listing(
        shown,
        _place(shown[-1]) if len(rest) > limit else None,
        ("KEY", "FROM", "ENDS WITH"),
        [(each.account, each.origin, each.ending or "-") for each in shown],
    )
    if not found:
        printer.remark("No keys; add one with `holdfast key set PROVIDER`.")


def remove(printer: Printer, options: OneKey) -> None:
    """Remove a key from the system keychain."""
    account = asyncio.run(secrets_here().remove(options.key))
    printer.done({"account": account}, f"Removed the key {account} from the keychain.")


def _place(each: "StoredSecret") -> str:
    return f"{each.account}@{each.origin}"


def _prompt_key(account: str) -> str:
    from getpass import GetPassWarning, getpass

    # If the echo cannot be disabled, the library would only warn.
    with warnings.catch_warnings():
        warnings.simplefilter("error", GetPassWarning)
        try:
            return getpass(f"Key for {account}: ")
        except (GetPassWarning, EOFError):
            raise _unreadable("Nothing was typed, or this terminal cannot hide the input") from None


def _read_key() -> str:
    from holdfast.services.secrets import LARGEST

    if sys.stdin is None:
        raise _unreadable("There is no input")
    # One more than the maximum, so that a longer key is refused and not cut.
    content = sys.stdin.buffer.read(LARGEST + 3)
    try:
        return content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _unreadable("The input is not UTF-8") from None


def _unreadable(problem: str) -> "Invalid":
    from holdfast.domain.errors import Code, Invalid

    return Invalid(
        Code.INVALID_INPUT, f"{problem}; pipe the key in: `holdfast key set KEY < FILE`."
    )


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = add_group(app, "key", "Manage keys in the system keychain.")
    command(group, "set", OneKey, only_here=True)(set_key)
    command(group, "list", Paging, only_here=True)(show_list)
    command(group, "remove", OneKey, only_here=True)(remove)
