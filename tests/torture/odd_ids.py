"""Ids that are none: ways out of folders, other spellings of right ones, pieces of languages.

Each holds the mark, so that it can be found wherever it went.
"""

import random
from typing import Final

from tests.torture.spellings import PREFIXES, UPS

MARK: Final = "zq7x"
_ENDS: Final = (
    "etc/passwd",
    "token",
    "history.db",
    "key",
    "holdfast.toml",
    "proc/self/environ",
    "",
)
# What is one in some grammar, and none in ours.
GRAMMAR: Final = (
    *("' OR '1'='1", '" OR 1=1 --', "1; DROP TABLE sessions; --", "x') UNION SELECT body --"),
    *(
        "%' ESCAPE '\\",
        "\\",
        "'",
        '"',
        "`id`",
        "$(id)",
        "| id",
        "; id",
        "&& id",
        "\n id",
        "\r\nX: y",
    ),
    *(
        "%s%s%n",
        "%00",
        "\x00",
        "\x1b[2J",
        "\u202e",
        "\ufeff",
        "\ud7ff",
        "\U0001f4a9",
        "ﬀ",
        "İ",
        "ß",
    ),
    *("{{7*7}}", "${7*7}", "#{7*7}", "<%= 7 %>", "{0.__class__}", "__proto__", "constructor"),
    *(
        "urn:uuid:",
        "{",
        "}",
        "[0]",
        "$.a",
        "..",
        ".",
        "~",
        "-",
        "_",
        "*",
        "?",
        "%",
        "#",
        "&a=b",
        "+",
    ),
    *(
        "null",
        "undefined",
        "NaN",
        "true",
        "0",
        "-1",
        "1e9",
        "0x10",
        "١٢٣",
        " ",
        "\t",
        "ent_",
        "obs_",
    ),
    *("journal:", "holdfast://", "file:///", "http://127.0.0.1/", "javascript:", "data:,", "//"),
)
RIGHT: Final = "0192f0c1-0000-7000-8000-00000000dead"


def odd_id(luck: random.Random) -> str:
    """Return something that no thing is called."""
    kind = luck.random()
    if kind < 0.4:
        ups = luck.choice(UPS) * luck.choice((1, 2, 3, 8, 16))
        way = f"{luck.choice(PREFIXES)}{ups}{luck.choice(_ENDS)}".format(inside="/x")
        return f"{way}{MARK}"
    if kind < 0.7:
        pieces = luck.choices(GRAMMAR, k=luck.randrange(1, 4))
        return f"{MARK}{''.join(pieces)}"
    if kind < 0.9:
        place = luck.randrange(len(RIGHT))
        return f"{RIGHT[:place]}{luck.choice(GRAMMAR)}{MARK}{RIGHT[place:]}"
    return f"{MARK}{luck.choice(('a', 'é', '💩', '/', '..'))}" * luck.choice((20, 100, 400))
