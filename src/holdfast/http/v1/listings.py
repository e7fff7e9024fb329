"""Listings: lists inside a query, and numbers as cursors."""

from holdfast.domain.queries import decode_count, encode_count


def after_of(cursor: str | None, *filters: object) -> int:
    """Return the number that a cursor stands behind; without one, that is none."""
    found = decode_count(cursor, filters)
    return found[0] if found else 0


def cursor_after(number: str | None, *filters: object) -> str | None:
    """Return the cursor behind a number, as the service gave it."""
    return None if number is None else encode_count((int(number), ""), filters)


def comma_list(text: str | None) -> tuple[str, ...]:
    """Return the entries of a comma list, each once."""
    return tuple(dict.fromkeys(text.split(","))) if text else ()
