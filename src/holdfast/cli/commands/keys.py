"""`holdfast key set|list|remove`: the secrets in the system's keychain.

A secret is typed without an echo or read from stdin. It is never an argument, because other
processes can read arguments and shells store them in their history.
"""

import asyncio
import sys
import warnings
from typing import Annotated

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.options import LIMIT, LIMIT_MOST, Cursor, Limit, argument
from holdfast.cli.output import Printer
from holdfast.cli.secrets import secrets_here
from holdfast.cli.terminal import is_terminal
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.queries import require_limit
from holdfast.domain.secrets import SHORTEST, Secret
from holdfast.services.secrets import LARGEST, StoredSecret

app = typer.Typer()
group = add_group(app, "key")
KeyArgument = Annotated[
    str,
    argument(
        "KEY",
        "A provider (openai), one of several keys of a provider (openai:work), an MCP"
        " server (mcp:NAME) or a host (host:NAME).",
    ),
]


@command(group, "set", only_here=True)
def set_key(printer: Printer, *, key: KeyArgument) -> None:
    """Store a key in the system keychain.

    Prompts without echo, or reads stdin; an existing key is replaced.
    """
    secrets = secrets_here()
    # Before the prompt, so that a wrong name is refused at once.
    account = secrets.account_to_set(key)
    secret = Secret(_prompt_key(account) if is_terminal(sys.stdin) else _read_key())
    asyncio.run(secrets.set(account, secret))
    if len(secret.reveal()) < SHORTEST:
        printer.warn(f"The key has fewer than {SHORTEST} characters, too few to mask it in texts.")
    printer.done({"account": account}, f"Stored the key {account} in the keychain.")


@command(group, "list", only_here=True)
def show_list(printer: Printer, *, limit: Limit = LIMIT, cursor: Cursor = None) -> None:
    """List the keys and their sources.

    Shows the last four characters of a key, and none of a short key.
    """
    limit = require_limit(limit, most=LIMIT_MOST)
    found = asyncio.run(secrets_here().list())
    rest = [each for each in found if cursor is None or _place(each) > cursor]
    shown = sorted(rest, key=_place)[:limit]
    printer.listing(
        shown,
        _place(shown[-1]) if len(rest) > limit else None,
        ("KEY", "FROM", "ENDS WITH"),
        [(each.account, each.origin, each.ending or "-") for each in shown],
    )
    if not found:
        printer.remark("No keys; add one with `holdfast key set PROVIDER`.")


@command(group, "remove", only_here=True)
def remove(printer: Printer, *, key: KeyArgument) -> None:
    """Remove a key from the system keychain."""
    account = asyncio.run(secrets_here().remove(key))
    printer.done({"account": account}, f"Removed the key {account} from the keychain.")


def _place(each: StoredSecret) -> str:
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
    if sys.stdin is None:
        raise _unreadable("There is no input")
    # One more than the maximum, so that a longer key is refused and not cut.
    content = sys.stdin.buffer.read(LARGEST + 3)
    try:
        return content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _unreadable("The input is not UTF-8") from None


def _unreadable(problem: str) -> Invalid:
    return Invalid(
        Code.INVALID_INPUT, f"{problem}; pipe the key in: `holdfast key set KEY < FILE`."
    )
