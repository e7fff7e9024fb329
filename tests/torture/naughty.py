"""Strings that would break a frame, a line or a parser if anybody let them through as they are."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

# By hand: every way to end a line or a frame, every field, and what readers take for space.
BY_HAND = (
    *("\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n", "\n\r", "a\nb", "a\rb", "a\r\nb", "\n" * 9),
    *("\n\ndata: injected\n\n", "\r\rdata: injected\r\r", "\r\n\r\ndata: injected\r\n\r\n"),
    *("\nid: 999999\n", "\rid: 999999\r", "\nid: 999999\n\n", "\n\nid:\n\n", "\nid\n\n", "id: 7"),
    *(
        "\nevent: closing\ndata: {}\n\n",
        "\nevent: gap\n\n",
        "\nretry: 1\n\n",
        "\nretry: 99999999\n",
    ),
    *(
        ": hb",
        "\n: hb\n\n",
        ":",
        "::",
        ": ",
        "data",
        "data:",
        "data: ",
        "data:  x",
        "event:",
        "id:",
    ),
    *("\0", "a\0b", "\0\n\0", "\nid: 1\0\n\n", "\ufeff", "\ufeffdata: x", "\n\ufeffdata: x\n\n"),
    *("\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1f", "\x7f", "\x80"),
    *("a\u2028data: x\u2029\u2029", "\u0085\u0085data: x\u0085\u0085", "\x0b\x0bdata: x\x0b\x0b"),
    *("\t", " ", "  lead", "trail  ", "\u00a0", "\u200b", "\u200d", "\u202e", "\u2066", "\ufffd"),
    *(
        "\uffff",
        "\ufffe",
        "\U0010ffff",
        "\U0001f4a9",
        "👩‍👩‍👧‍👦",
        "e\u0301",
        "Å",
        "ﷺ",
        "İ",
        "ß",
        "ſ",
    ),
    *(
        '"',
        "\\",
        '\\"',
        "\\n",
        "\\u000a",
        "\\\\n",
        '"}\n\n',
        '"}}\n\nevent: closing\n',
        "</script>",
    ),
    *("<!--", "]]>", "%0a%0d", "&#10;", "${x}", "{{x}}", "' OR 1=1", "\x1b[31m", "\x1b]0;x\x07"),
    *(
        "null",
        "NaN",
        "[]",
        "{}",
        "0",
        "-0",
        "1e999",
        "true",
        "undefined",
        "__proto__",
        "constructor",
    ),
)


def naughty(luck: random.Random, made: int) -> list[str]:
    """Return all strings: by hand, made up of the worst pieces, and a public list if it is here."""
    pieces = [each for each in BY_HAND if len(each) < 12]
    strings = list(BY_HAND)
    strings += ["".join(luck.choices(pieces, k=luck.randrange(2, 40))) for _ in range(made)]
    strings += [text for text in public() if text.strip()]
    return strings


def public() -> Iterator[str]:
    """Yield the Big List of Naughty Strings, if a folder of corpora holds it."""
    folder = os.environ.get("HOLDFAST_CORPORA")
    for path in sorted(Path(folder).rglob("blns.json")) if folder else ():
        for text in json.loads(path.read_text("utf-8")):
            # What is no text in any encoding cannot be sent by anybody.
            if text.encode(errors="replace").decode() == text:
                yield text
