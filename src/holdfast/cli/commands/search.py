"""`holdfast search QUERY`: full-text search over messages, tool calls and observations."""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.api import Holdfast
from holdfast.cli.command import command
from holdfast.cli.commands.costs import parse_time_option
from holdfast.cli.connect import connect
from holdfast.cli.options import SESSION_HELP, Cursor, argument, option
from holdfast.cli.output import Printer, local_time
from holdfast.cli.session_refs import find_session, short_ids
from holdfast.cli.terminal import is_terminal
from holdfast.cli.workspace import absolute_path
from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import RepoId
from holdfast.domain.messages import Role
from holdfast.search.query import LIMIT_MOST, LIMIT_USUAL, Hit, SearchQuery
from holdfast.wire.search import hit_form

app = typer.Typer()


_BEFORE_MATCH: Final = 12


@command(app, "search")
async def show_hits(
    printer: Printer,
    *,
    query: Annotated[
        str,
        argument(
            "QUERY", 'Words that must all match; "…" is a phrase, word* a prefix, -word excludes.'
        ),
    ],
    session: Annotated[str | None, option("ID", f"Only this session. {SESSION_HELP}")] = None,
    agent: Annotated[str | None, option("AGENT", "Only this agent: its slug or id.")] = None,
    repo: Annotated[
        str | None, option("REPO", "Only this repository: its id, name or path.")
    ] = None,
    role: Annotated[
        Role | None, option("ROLE", f"Only messages of this role: {', '.join(Role)}.")
    ] = None,
    tool: Annotated[str | None, option("TOOL", "Only calls and results of this tool.")] = None,
    since: Annotated[
        str | None, option("TIME", "Only from this date or time on, such as 2026-01-31T12:00Z.")
    ] = None,
    until: Annotated[str | None, option("TIME", "Only before this date or time.")] = None,
    limit: Annotated[int, option("N", f"At most this many, 1 to {LIMIT_MOST}.")] = LIMIT_USUAL,
    cursor: Cursor = None,
) -> None:
    """Search messages, tool calls, titles and observations.

    The newest session comes first, and within it the newest message. Case and accents are ignored;
    matches are shown in brackets.
    """
    first, last = parse_time_option(since, "--since"), parse_time_option(until, "--until")
    async with connect(printer) as holdfast:
        wanted = SearchQuery(
            text=query,
            agent=agent,
            repo_id=await _repo(holdfast, repo) if repo else None,
            session_id=await find_session(holdfast, session) if session else None,
            role=role,
            tool=tool,
            since=first,
            until=last,
            limit=limit,
        )
        page = await holdfast.search.find(holdfast.owner, wanted, cursor=cursor)
    shown = short_ids([hit.session_id or "-" for hit in page.items])
    printer.listing(
        [hit_form(each) for each in page.items],
        page.next_cursor,
        ("SESSION", "MESSAGE", "AT", "WHO", "FOUND"),
        [(shown[hit.session_id or "-"], *_row(hit)) for hit in page.items],
    )
    if not page.items and page.next_cursor is None:
        printer.remark("No matches.")


async def _repo(holdfast: Holdfast, ref: str) -> RepoId:
    named = {ref, _resolve_path(ref)}
    for repo in await holdfast.repos.list(holdfast.owner):
        if named & {repo.id, repo.name, repo.path}:
            return repo.id
    raise NotFound(
        Code.REPO_NOT_FOUND, "There is no such repository; `holdfast repos list` shows yours."
    )


def _resolve_path(ref: str) -> str:
    # As it is registered; a name that is not a path matches nothing.
    return os.path.realpath(absolute_path(Path(ref)))


def _row(hit: Hit) -> tuple[str, ...]:
    number = "-" if hit.message_sequence is None else str(hit.message_sequence)
    who = "observation" if hit.observation_id else hit.role or "title"
    at = local_time(hit.created_at)
    if is_terminal(sys.stdout):
        return (number, at.partition(" ")[0], who, _around_match(hit.snippet))
    return (number, at, who, hit.snippet)


def _around_match(snippet: str) -> str:
    """Return a snippet that begins shortly before the match, because its end may be cut off."""
    at = snippet.find("[")
    return snippet if at <= _BEFORE_MATCH else f"…{snippet[at - _BEFORE_MATCH :]}"
