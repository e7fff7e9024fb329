"""References to sessions: find one by an id prefix, and shorten ids for display."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.cli.terminal import is_terminal
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.ids import SessionId, is_uuid
from holdfast.domain.queries import LIMIT_MOST, SessionOrder, SessionQuery

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.domain.sessions import Session


# Lengths up to the ends of the id's groups: the first two groups are the timestamp.
_LENGTHS: Final = (13, 18, 23, 36)


async def session_titles(holdfast: "Holdfast", ids: Iterable[str | None]) -> dict[str, str]:
    """Return the titles of those ids that are sessions of this store and have one.

    Several are looked up in the list of sessions, because a server is asked once for each page.
    """
    wanted = {each for each in ids if each is not None and is_uuid(each)}
    if len(wanted) == 1:
        try:
            found = (await holdfast.sessions.get(holdfast.owner, SessionId(*wanted)),)
        except NotFound:
            # The session was reported by an observation and is not in this store.
            return {}
        return _titles(found)
    titles: dict[str, str] = {}
    query = SessionQuery(owner=holdfast.owner, order=SessionOrder.UPDATED_AT, limit=LIMIT_MOST)
    cursor: str | None = None
    while wanted:
        page = await holdfast.sessions.list(query, cursor=cursor)
        titles |= _titles(each for each in page.items if each.id in wanted)
        wanted -= {each.id for each in page.items}
        if (cursor := page.next_cursor) is None:
            break
    return titles


def _titles(sessions: "Iterable[Session]") -> dict[str, str]:
    return {each.id: each.title for each in sessions if each.title is not None}


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return how each id is displayed: complete for programs, a unique prefix for people.

    All prefixes have the length that makes them unique among the given ids.
    """
    whole = dict.fromkeys(ids)
    if not is_terminal(sys.stdout):
        return {each: each for each in whole}
    length = next(
        (most for most in _LENGTHS if len({each[:most] for each in whole}) == len(whole)), None
    )
    return {each: each[:length] if is_uuid(each) else each for each in whole}


async def find_session(holdfast: "Holdfast", text: str) -> SessionId:
    """Return the session with an id or an id prefix.

    A complete id, or text that is not a prefix, is passed on; the service validates it.
    """
    wanted = text.strip().lower()
    if is_uuid(wanted) or not _PREFIX.fullmatch(wanted):
        return SessionId(wanted)
    if len(wanted) < PREFIX_SHORTEST:
        raise NotFound(
            Code.SESSION_NOT_FOUND,
            f"Write at least {PREFIX_SHORTEST} characters of a session's id; `holdfast sessions "
            "list` shows yours.",
        )
    found = await holdfast.sessions.find(holdfast.owner, wanted, limit=SHOWN_MOST)
    if len(found) > 1:
        raise Invalid(
            Code.INVALID_ID,
            f"Several sessions begin with {wanted}: {', '.join(found)}; write more of the id.",
            {"sessions": list(found)},
        )
    return found[0] if found else SessionId(wanted)


# Ids begin with the time: shorter prefixes are shared by all sessions of 15 minutes.
PREFIX_SHORTEST: Final = 8
SHOWN_MOST: Final = 5
_PREFIX: Final = re.compile(r"[0-9a-f-]+")
