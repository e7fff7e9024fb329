"""Snapshots that are brought back: they belong to no block any more, and are else untouched."""

import json

from holdfast.domain.zone_previews import is_deep, parsed, version_of


def without_block(content: bytes) -> bytes:
    """Return a second snapshot that belongs to no block any more, not a byte of it else changed."""
    document = parsed(content)
    version = version_of(document)
    if version is None or version < 2 or "sourceBlockId" not in document:
        return content
    if is_deep(document):
        # So deep that two readers of JSON disagree about it: nobody's page wrote it.
        return content
    text = content.decode()
    for start, end in reversed(_values_of(text, "sourceBlockId")):
        text = f'{text[:start]}""{text[end:]}'
    return text.encode()


def _values_of(text: str, wanted: str) -> list[tuple[int, int]]:
    """Return where the values of a key stand in the text of an object that is known to be one."""
    decoder = json.JSONDecoder()
    found = []
    at = _behind_space(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        start = _behind_space(text, _behind_space(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        if key == wanted:
            found.append((start, end))
        at = _behind_space(text, end)
        if text[at] == ",":
            at = _behind_space(text, at + 1)
    return found


def _behind_space(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at
