"""`holdfast token list|create|revoke|link`: manage who may call the server.

No token is required, because a user who can open the store can do all of this anyway.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.connect import open_local
from holdfast.cli.options import LIMIT, LIMIT_MOST, Cursor, Limit, argument, flag, option
from holdfast.cli.output import Printer, local_time
from holdfast.cli.server_file import read_server_file
from holdfast.cli.session_refs import PREFIX_SHORTEST
from holdfast.config import duration
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, NotFound
from holdfast.domain.ids import LOCAL_OWNER, is_uuid, require_owner
from holdfast.domain.queries import require_limit
from holdfast.domain.tokens import Scope, Token, TokenKind
from holdfast.wire.scalars import format_time, format_time_or_none

app = typer.Typer()
group = add_group(app, "token")


_SCOPES = "read, write, admin, each includes the previous one; or tools, to run tools as a client."


@command(group, "list", only_here=True)
async def show_list(
    printer: Printer,
    *,
    limit: Limit = LIMIT,
    cursor: Cursor = None,
    owner: Annotated[str | None, option("OWNER", "Only the tokens of this owner.")] = None,
    all: Annotated[bool, flag("Include expired and revoked tokens.", "--all")] = False,
) -> None:
    """List tokens, without their secrets.

    LAST USED is accurate to the hour.
    """
    limit = require_limit(limit, most=LIMIT_MOST)
    async with open_local(printer) as holdfast:
        every = await holdfast.tokens.list_all()
    now = datetime.now(UTC)
    found = [
        each
        for each in every
        if (owner is None or each.owner == owner) and (all or each.is_live(now))
    ]
    rest = [each for each in found if cursor is None or each.id > cursor]
    shown = rest[:limit]
    printer.listing(
        [token_form(each) for each in shown],
        shown[-1].id if len(rest) > limit else None,
        ("ID", "OWNER", "SCOPE", "KIND", "ENDS", "LAST USED", "NAME"),
        [_row(each, now) for each in shown],
    )
    if not found:
        printer.remark("No tokens; create one with `holdfast token create NAME`.")


@command(group, "create", only_here=True)
async def create(
    printer: Printer,
    *,
    name: Annotated[str, argument("NAME", "A name that describes what the token is for.")],
    scope: Annotated[Scope, option("SCOPE", f"The scope of the token: {_SCOPES}")] = Scope.WRITE,
    expires: Annotated[
        str | None,
        option(
            "TIME",
            "The lifetime: seconds, or a number with s, m, h or d, such as 30d; default: "
            "no expiry.",
        ),
    ] = None,
    owner: Annotated[
        str, option("OWNER", "The owner it acts for; owners cannot see each other's data.")
    ] = LOCAL_OWNER,
    agent: Annotated[
        list[str] | None,
        option("AGENT", "With the scope tools: only calls of this agent; repeatable."),
    ] = None,
    tool: Annotated[
        list[str] | None,
        option("TOOL", "With the scope tools: only calls of tools with this name; repeatable."),
    ] = None,
) -> None:
    """Create a token and print its secret once.

    Programs send it as `Authorization: Bearer SECRET`.
    """
    owner = require_owner(owner)
    life = _parse_lifetime(expires)
    async with open_local(printer) as holdfast:
        agents = [(await holdfast.agents.get(owner, ref)).id for ref in agent or ()]
        token, secret = await holdfast.tokens.create(
            owner, name, scope, life, agents=tuple(agents), tools=tuple(tool or ())
        )
    # Alone on stdout, so that a shell can capture it.
    printer.done({**token_form(token), "secret": secret}, secret)
    printer.remark(f"This is the secret of token {token.id}; it will not be shown again.")


@command(group, "revoke", only_here=True)
async def revoke(
    printer: Printer,
    *,
    id: Annotated[
        str,
        argument("ID", f"The token's id, or a prefix of at least {PREFIX_SHORTEST} characters."),
    ],
) -> None:
    """Revoke a token permanently.

    Servers reject it within seconds and close its open streams. The local token, in the file
    `token` of the home folder, is replaced by a new one at once.
    """
    async with open_local(printer) as holdfast:
        found = _find_token(await holdfast.tokens.list_all(), id)
        token = await holdfast.tokens.revoke(found.owner, found.id)
        if token.kind is TokenKind.LOCAL:
            try:
                await holdfast.tokens.ensure_local()
            except HoldfastError as error:
                # The token is revoked nevertheless, and this file may be the reason for revoking
                # it.
                printer.warn(error.message)
    printer.done(token_form(token), f"Revoked token {token.id} ({token.name}).")


@command(group, "link", only_here=True)
async def link(
    printer: Printer,
    *,
    scope: Annotated[
        Scope, option("SCOPE", f"The scope of the browser session: {_SCOPES}")
    ] = Scope.ADMIN,
    owner: Annotated[str, option("OWNER", "The owner the browser acts for.")] = LOCAL_OWNER,
) -> None:
    """Print a sign-in link for a browser.

    The server must be running. The link works once, within ten minutes.
    """
    owner = require_owner(owner)
    url = (read_server_file(printer.settings.load().home) or {}).get("url")
    if not isinstance(url, str):
        raise Conflict(
            Code.SERVER_NOT_RUNNING,
            "No server is running for this home folder; start one with `holdfast serve`.",
        )
    async with open_local(printer) as holdfast:
        code = await holdfast.tokens.sign_in_code(owner, scope)
    found = f"{url}/sign-in?code={code}"
    printer.done({"url": found}, found)


def token_form(token: Token) -> dict[str, Any]:
    """Return a token without its secret."""
    return {
        "id": token.id,
        "owner": token.owner,
        "name": token.name,
        "scope": token.scope.value,
        "agents": list(token.agents),
        "tools": list(token.tools),
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


def _parse_lifetime(text: str | None) -> timedelta | None:
    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise Invalid(Code.INVALID_INPUT, f"--expires {error}.", {"field": "--expires"}) from None
