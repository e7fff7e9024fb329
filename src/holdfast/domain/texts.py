"""What text may be: any Unicode but NUL and lone surrogates, within a limit.

NUL ends a string in too many places between here and a screen, and a lone surrogate has no UTF-8.
"""

from holdfast.domain.errors import Code, Invalid


def require_text(text: str, *, field: str, longest: int, shortest: int = 0) -> str:
    """Return the text unchanged, or refuse it naming the field, never the value."""
    if not shortest <= len(text) <= longest:
        raise Invalid(
            Code.INVALID_TEXT,
            f"{field} must have {shortest} to {longest} characters, not {len(text)}.",
            {"field": field, "length": len(text)},
        )
    if "\x00" in text:
        raise Invalid(
            Code.INVALID_TEXT, f"{field} must not contain a NUL character.", {"field": field}
        )
    return require_encodable(text, field=field)


def require_encodable(text: str, *, field: str) -> str:
    """Return the text unchanged, or refuse one that has no UTF-8 form."""
    if not is_encodable(text):
        raise Invalid(
            Code.INVALID_TEXT, f"{field} must not contain a lone surrogate.", {"field": field}
        )
    return text


def is_encodable(text: str) -> bool:
    """Tell whether the text has a UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    """Replace what no row can hold: NUL, and halves of a surrogate pair that lost each other."""
    if text.isascii() and "\x00" not in text:
        return text
    # Joined first, because whoever sends it may cut between the halves of one character.
    units = text.replace("\x00", "\ufffd").encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")


def require_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags without repeats, in their order, or refuse them."""
    # In the order they were given, which is how people sort them.
    distinct = tuple(dict.fromkeys(tags))
    if len(distinct) > 50:
        raise Invalid(Code.INVALID_TEXT, "At most 50 tags.", {"field": "tags"})
    for tag in distinct:
        require_text(tag, field="tags", shortest=1, longest=64)
    return distinct
