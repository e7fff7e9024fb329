"""Texts that would steer a terminal, hide something, or pass for something else on it."""

import random
from collections.abc import Iterator

SEQUENCES = (
    *("\x1b[5m", "\x1b[7;41m", "\x1b[2J", "\x1b[H", "\x1b[10A", "\x1b[K", "\x1b[?1049h", "\x1b[6n"),
    *(
        "\x1b[8m",
        "\x1b[38;5;1m",
        "\x1b[20;3H",
        "\x1b[?25l",
        "\x1b[3J",
        "\x1b[>c",
        "\x1b[200~",
        "\x1bc",
    ),
    *("\x1b]0;owned\x07", "\x1b]2;owned\x1b\\", "\x1b]52;c;b3duZWQ=\x07", "\x1b]1337;File=:\x07"),
    *(
        "\x1b]8;;http://evil.example\x07",
        "\x1b]8;;\x07",
        "\x1b]4;1;rgb:0/0/0\x1b\\",
        "\x1b]777;x\x07",
    ),
    *("\x1bPq#0;2;0;0;0\x1b\\", '\x1bP$q"p\x1b\\', "\x1b_G\x1b\\", "\x1b^x\x1b\\", "\x1bXx\x1b\\"),
    *(
        "\x9b5m",
        "\x9b2J",
        "\x9d0;owned\x9c",
        "\x90q\x9c",
        "\x9fx\x9c",
        "\x84",
        "\x85",
        "\x8d",
        "\x9c",
    ),
    *("\x1b(0", "\x1b)B", "\x1b#8", "\x1b7", "\x1b8", "\x1bM", "\x1bD", "\x1bE", "\x1b=", "\x1b>"),
    *("\x1b[", "\x1b", "\x1b]0;", "\x1b\x1b[5m[5m", "\x1b[\x1b[5m5m", "\x1b[1\r;5m"),
)
CHARACTERS = (
    *("\r", "\x08", "\x07", "\x0b", "\x0c", "\x0e", "\x0f", "\x00", "\x7f", "\x05", "\x18", "\x1a"),
    *("\u202e", "\u202d", "\u202a", "\u202b", "\u2066", "\u2067", "\u2068", "\u2069", "\u200e"),
    *("\u200f", "\u061c", "\u200b", "\u200c", "\u200d", "\u2060", "\u2063", "\ufeff", "\xad"),
    *("\u2028", "\u2029", "\U000e0041", "\U000e007f", "\ufff9", "\u206a"),
)
# As they stand in an answer: as words, in what Markdown draws specially, and cut in two.
CARRIERS = (
    *("{}", "safe{}text", "# {}heading", "- item {}", "**{}**", "`code{}`", "> quoted {}"),
    *("[name{}](http://a.example/{})", "```{}\ncode{}\n```", "| a{} |\n|---|\n| {} |", "<b>{}</b>"),
    *("1. {}\n2. {}", "![{}](x)", "a\n{}\nb", "&#27;[5m{}", "\\{}", "{}" * 5),
)


def steering(luck: random.Random, count: int) -> list[str]:
    """Return so many texts: everything by itself first, then everything in everything."""
    alone = [*SEQUENCES, *CHARACTERS]
    carried = list(_carried(alone))
    luck.shuffle(carried)
    return [*alone, *carried][:count]


def _carried(alone: list[str]) -> Iterator[str]:
    for carrier in CARRIERS:
        for each in alone:
            yield carrier.replace("{}", each)
