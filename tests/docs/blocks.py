"""The fenced blocks of our pages: found, and told apart by what their info string says they are."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What a block may be. `text` is shown and not run, and the run prints how many there are.
KINDS = frozenset({"python", "sh", "console", "toml", "yaml", "json", "text"})

# Commands that set up or test the checkout itself. A page may show them; what they do is held by
# the run that executes this very file.
NOT_RUN = re.compile(
    r"git clone \S+|cd holdfast|make (?:setup|up|test|check|torture|interop|bench|lock)(?: .*)?"
    r"|PORT=\d+ make up|pip install \.(?: .*)?|pip install 'holdfast\[[a-z-]+\]'"
    r"|uv tool install \."
)

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block, and the line of the page its content begins at."""

    page: str
    line: int
    kind: str
    content: str


@dataclass(frozen=True)
class Command:
    """A command of a `console` block and the output shown below it; `None` when none is shown."""

    line: int
    text: str
    shown: str | None


def pages() -> list[Path]:
    """Return every page of ours."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page in their order."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        at += 1
        if opened is None:
            continue
        start = at
        while at < len(lines) and lines[at].strip() != "```":
            at += 1
        if at == len(lines):
            raise ValueError(f"{page}:{start} opens a block that nothing closes")
        body = [line.removeprefix(opened["indent"]) for line in lines[start:at]]
        yield Block(page, start + 1, opened["info"].strip(), "\n".join(body) + "\n")
        at += 1


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a `console` block: `$ command`, `> its next line`, then its output."""
    pieces = re.split(r"^\$ ", block.content, flags=re.MULTILINE)
    if pieces[0]:
        raise ValueError(f"{block.page}:{block.line} shows output before its first command")
    line = block.line
    for piece in pieces[1:]:
        first, *rest = piece.splitlines()
        # Only an unfinished command has a next line: output may begin with `>` too.
        goes_on = "<<" in first or first.endswith("\\")
        more = list(takewhile(lambda each: each.startswith("> "), rest)) if goes_on else []
        shown = rest[len(more) :]
        text = "\n".join([first, *(each.removeprefix("> ") for each in more)])
        yield Command(line, text, "\n".join(shown) if shown else None)
        line += 1 + len(rest)


def is_as_shown(shown: str, output: str) -> bool:
    """Tell whether output is what a page shows; `…` stands for anything, alone for any lines."""
    pattern = ""
    for line in shown.strip("\n").splitlines():
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += ".*".join(map(re.escape, line.rstrip().split("…"))) + r"[ \t]*\n"
    return re.fullmatch(pattern, output.strip("\n") + "\n") is not None
