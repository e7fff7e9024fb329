"""`holdfast token list|create|revoke|link`: manage who may call the server.

No token is required, because a user who can open the store can do all of this anyway.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.connect import open_local
from holdfast.cli.options import LIMIT_MOST, Paging, argument, flag, option
from holdfast.cli.output import Printer, local_time
from holdfast.cli.server_file import read_server_file
from holdfast.cli.session_refs import PREFIX_SHORTEST
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, NotFound
from holdfast.domain.ids import LOCAL_OWNER, is_uuid, require_owner
from holdfast.domain.tokens import Scope, Token, TokenKind

if TYPE_CHECKING:
    from datetime import timedelta


_SCOPES = "read, write, admin, each includes the previous one; or tools, to run tools as a client."


@dataclass(frozen=True, kw_only=True)
class TokenListOptions(Paging):
    """Which tokens."""

    owner: Annotated[str | None, option("OWNER", "Only the tokens of this owner.")] = None
    all: Annotated[bool, flag("Include expired and revoked tokens.", "--all")] = False


async def show_list(printer: Printer, options: TokenListOptions) -> None:
    """List tokens, without their secrets.

    LAST USED is accurate to the hour.
    """
    from holdfast.domain.queries import require_limit

    limit = require_limit(options.limit, most=LIMIT_MOST)
    async with open_local(printer) as holdfast:
        every = await holdfast.tokens.list_all()
    now = datetime.now(UTC)
    found = [
        each
        for each in every
        if (options.owner is None or each.owner == options.owner)
        and (options.all or each.is_live(now))
    ]
    rest = [each for each in found if options.cursor is None or each.id > options.cursor]
    shown = rest[:limit]
    printer.listing(
        [token_form(each) for each in shown],
        shown[-1].id if len(rest) > limit else None,
        ("ID", "OWNER", "SCOPE", "KIND", "ENDS", "LAST USED", "NAME"),
        [_row(each, now) for each in shown],
    )
    if not found:
        printer.remark("No tokens; create one with `holdfast token create NAME`.")


@dataclass(frozen=True, kw_only=True)
class TokenCreateOptions:
    """A new token."""

    name: Annotated[str, argument("NAME", "A name that says what the token is for.")]
    scope: Annotated[Scope, option("SCOPE", f"The scope of the token: {_SCOPES}")] = Scope.WRITE
    expires: Annotated[
        str | None,
        option(
            "TIME",
            "The lifetime: seconds, or a number with s, m, h or d, such as 30d; default: "
            "no expiry.",
        ),
    ] = None
    owner: Annotated[
        str, option("OWNER", "The owner it acts for; owners cannot see each other's data.")
    ] = LOCAL_OWNER


async def create(printer: Printer, options: TokenCreateOptions) -> None:
    """Create a token and print its secret once.

    Programs send it as `Authorization: Bearer SECRET`.
    """
    owner = require_owner(options.owner)
    life = _parse_lifetime(options.expires)
    async with open_local(printer) as holdfast:
        token, secret = await holdfast.tokens.create(owner, options.name, options.scope, life)
    # Alone on stdout, so that a shell can capture it.
    printer.done({**token_form(token), "secret": secret}, secret)
    printer.remark(f"This is the secret of token {token.id}; it will not be shown again.")


@dataclass(frozen=True, kw_only=True)
class RevokeOptions:
    """A token by its id."""

    id: Annotated[
        str,
        argument("ID", f"The token's id, or a prefix of at least {PREFIX_SHORTEST} characters."),
    ]


async def revoke(printer: Printer, options: RevokeOptions) -> None:
    """Revoke a token permanently.

    Servers reject it within seconds and close its open streams. The local token, in the file
    `token` of the home folder, is replaced by a new one at once.
    """
    async with open_local(printer) as holdfast:
        found = _find_token(await holdfast.tokens.list_all(), options.id)
        token = await holdfast.tokens.revoke(found.owner, found.id)
        if token.kind is TokenKind.LOCAL:
            try:
                await holdfast.tokens.ensure_local()
            except HoldfastError as error:
                # The token is revoked nevertheless, and this file may be the reason for revoking
                # it.
                printer.warn(error.message)
    printer.done(token_form(token), f"Revoked token {token.id} ({token.name}).")


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """Who signs in."""

    scope: Annotated[Scope, option("SCOPE", f"The scope of the browser session: {_SCOPES}")] = (
        Scope.ADMIN
    )
    owner: Annotated[str, option("OWNER", "The owner the browser acts for.")] = LOCAL_OWNER


async def link(printer: Printer, options: LinkOptions) -> None:
    """Print a sign-in link for a browser.

    The server must be running. The link works once, within ten minutes.
    """
    owner = require_owner(options.owner)
    url = (read_server_file(printer.settings.load().home) or {}).get("url")
    if not isinstance(url, str):
        raise Conflict(
            Code.SERVER_NOT_RUNNING,
            "No server is running for this home folder; start one with `holdfast serve`.",
        )
    async with open_local(printer) as holdfast:
        code = await holdfast.tokens.sign_in_code(owner, options.scope)
    found = f"{url}/sign-in?code={code}"
    printer.done({"url": found}, found)


def token_form(token: Token) -> dict[str, Any]:
    """Return a token without its secret."""
    from holdfast.wire.scalars import format_time, format_time_or_none

    return {
        "id": token.id,
        "owner": token.owner,
        "name": token.name,
        "scope": token.scope.value,
        "kind": token.kind.value,
        "created_at": format_time(token.created_at),
        "expires_at": format_time_or_none(token.expires_at),
        "revoked_at": format_time_or_none(token.revoked_at),
        "last_used_at": format_time_or_none(token.last_used_at),
    }


def _row(token: Token, now: datetime) -> tuple[str, ...]:
    ends = "revoked" if token.revoked_at else local_time(token.expires_at)
    if not token.revoked_at and not token.is_live(now):
        ends = "expired"
    used = local_time(token.last_used_at)
    return (token.id, token.owner, token.scope, token.kind, ends, used, token.name)


def _find_token(every: Sequence[Token], text: str) -> Token:
    """Return the token with an id or an id prefix."""
    options = text.strip().lower()
    is_enough = is_uuid(options) or len(options) >= PREFIX_SHORTEST
    found = [each for each in every if is_enough and each.id.startswith(options)]
    if not found:
        raise NotFound(
            Code.TOKEN_NOT_FOUND,
            "There is no such token; write its id or a prefix of at least "
            f"{PREFIX_SHORTEST} characters, as shown by `holdfast token list`.",
        )
    if len(found) > 1:
        ids = [each.id for each in found]
        raise Invalid(
            Code.INVALID_ID,
            f"Several tokens begin with {options}: {', '.join(ids)}; write more of the id.",
            {"tokens": ids},
        )
    return found[0]


def _parse_lifetime(text: str | None) -> "timedelta | None":
    from holdfast.config import duration

    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise Invalid(Code.INVALID_INPUT, f"--expires {error}.", {"field": "--expires"}) from None


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = add_group(app, "token", "Manage access tokens of the server.")
    command(group, "list", TokenListOptions, only_here=True)(show_list)
    command(group, "create", TokenCreateOptions, only_here=True)(create)
    command(group, "revoke", RevokeOptions, only_here=True)(revoke)
    command(group, "link", LinkOptions, only_here=True)(link)
