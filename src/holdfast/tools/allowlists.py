"""Which commands a grant allows: by whole words, never by joined text.

An entry is split once, as a shell would split it; nothing else of a shell is here. A call is
allowed when each of the grants allows it.
"""

import shlex
from collections.abc import Sequence

from holdfast.domain.tools import Grant

Words = tuple[str, ...]


def has_entries(grants: Sequence[Grant]) -> bool:
    """Tell whether any command at all could be allowed."""
    return bool(grants) and all(grant.commands or grant.command_globs for grant in grants)


def is_allowed(grants: Sequence[Grant], call: Words) -> bool:
    """Tell whether each of the grants allows the call."""
    return bool(call and grants) and all(_grant_allows(grant, call) for grant in grants)


def _grant_allows(grant: Grant, call: Words) -> bool:
    if any(words(entry) == call for entry in grant.commands):
        return True
    return any(_glob_allows(words(entry), call) for entry in grant.command_globs)


def words(entry: str) -> Words:
    """Return the words of an entry; none where its quotes do not match."""
    try:
        return tuple(shlex.split(entry))
    except ValueError:
        return ()


def _glob_allows(patterns: Words, call: Words) -> bool:
    # Refused by the configuration, too; a grant may have come from somewhere else.
    if not patterns or set("*?") & set(patterns[0]) or "**" in patterns[:-1]:
        return False
    if patterns[-1] == "**":
        patterns, call = patterns[:-1], call[: len(patterns) - 1]
    return len(patterns) == len(call) and all(map(word_matches, patterns, call))


def word_matches(pattern: str, word: str) -> bool:
    """Tell whether `*` (any characters) and `?` (one) make the pattern fit the whole word.

    Going back no further than the last star keeps this linear in the word.
    """
    at = here = 0
    star, resume = -1, 0
    while here < len(word):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, here
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", word[here]):
            at += 1
            here += 1
        elif star >= 0:
            resume += 1
            at, here = star + 1, resume
        else:
            return False
    return not pattern[at:].strip("*")
