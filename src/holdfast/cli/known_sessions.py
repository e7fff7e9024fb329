"""Sessions as people know them: by a title, and by an id that is no longer than it has to be."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.cli.terminal import is_terminal
from holdfast.domain.errors import NotFound
from holdfast.domain.ids import SessionId, is_uuid

if TYPE_CHECKING:
    from holdfast.cli.house import House

# Up to the ends of the groups of an id: the first two tell the millisecond it is from.
_LENGTHS: Final = (13, 18, 23, 36)


async def titles_of(holdfast: "House", ids: Iterable[str | None]) -> dict[str, str]:
    """Return the titles of those that are sessions of this store and have one."""
    found = {}
    for each in dict.fromkeys(ids):
        if each is None or not is_uuid(each):
            continue
        try:
            session = await holdfast.sessions.get(holdfast.owner, SessionId(each))
        except NotFound:
            # It was told by somebody, and ran elsewhere.
            continue
        if session.title is not None:
            found[each] = session.title
    return found


def shown_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return how each id is shown: whole to a program, to a person its beginning.

    A beginning is as long as those need that are shown beside it.
    """
    whole = dict.fromkeys(ids)
    if not is_terminal(sys.stdout):
        return {each: each for each in whole}
    length = next(
        (most for most in _LENGTHS if len({each[:most] for each in whole}) == len(whole)), None
    )
    return {each: each[:length] if is_uuid(each) else each for each in whole}
