"""Canaries: made-up secrets of every shape, and the search for what is left of them.

A canary is found whole, encoded, and in pieces: any eleven characters in a row of its random part,
in each of its encodings, are a find.
"""

import base64
import random
import re
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PIECE = 8
# Looked at every so many bytes; the pieces of a canary begin at each of its characters.
STRIDE = 4
_ALPHABET = string.ascii_letters + string.digits
_PRINTABLE = re.compile(rb"[!-~]{%d,}" % PIECE)


@dataclass(frozen=True)
class Canary:
    """A secret; `core` is the part of it that nothing else can hold."""

    number: int
    shape: str
    value: str
    core: str

    @property
    def name(self) -> str:
        """Return what a finding calls it."""
        return f"{self.shape}-{self.number}"


@dataclass(frozen=True)
class Hit:
    """A canary, the place where it was found, and how it was spelled there."""

    canary: str
    place: str
    form: str


# How each shape is made around its random core.
SHAPES: dict[str, Callable[[str], str]] = {
    "openai": lambda core: f"sk-proj-{core}",
    "anthropic": lambda core: f"sk-ant-api03-{core}",
    "google": lambda core: f"AIzaSy{core[:33]}",
    "github": lambda core: f"ghp_{core}",
    "github-fine": lambda core: f"github_pat_{core[:22]}_{core[22:]}",
    "slack": lambda core: f"xoxb-1234567890-{core}",
    "aws": lambda core: f"{core[:18]}/{core[18:36]}+",
    "gitlab": lambda core: f"glpat-{core[:24]}",
    "huggingface": lambda core: f"hf_{core}",
    "jwt": lambda core: f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{core}",
    "pem": lambda core: f"-----BEGIN PRIVATE KEY-----\n{core}\n-----END PRIVATE KEY-----\n",
    "password": lambda core: f"pä\"ss\\ {core}/?&=%+'",
}


def canaries(luck: random.Random, count: int) -> list[Canary]:
    """Return so many canaries, of all shapes in turn."""
    made = []
    for number in range(count):
        shape = list(SHAPES)[number % len(SHAPES)]
        # With a digit early on, as every key of these shapes has one.
        core = f"{luck.randrange(10)}{''.join(luck.choices(_ALPHABET, k=39))}"
        made.append(Canary(number, shape, SHAPES[shape](core), core))
    return made


class Hunt:
    """Looks for canaries; each piece of a canary in each encoding is known by heart."""

    def __init__(self, hunted: Iterable[Canary]) -> None:
        self._pieces: dict[bytes, tuple[str, str]] = {}
        for canary in hunted:
            for form, spelled in _spellings(canary):
                for at in range(len(spelled) - PIECE + 1):
                    self._pieces[spelled[at : at + PIECE]] = canary.name, form

    def in_bytes(self, content: bytes, place: str) -> set[Hit]:
        """Return what is found in a content."""
        found = set()
        for run in _PRINTABLE.finditer(content):
            text = run[0]
            for at in range(0, len(text) - PIECE + 1, STRIDE):
                if known := self._pieces.get(text[at : at + PIECE]):
                    found.add(Hit(known[0], place, known[1]))
        return found

    def below(self, folder: Path) -> set[Hit]:
        """Return what is found in every file below a folder, and in their names."""
        found: set[Hit] = set()
        for path in sorted(folder.rglob("*")):
            place = path.relative_to(folder).as_posix()
            found |= self.in_bytes(place.encode(errors="replace"), "a file's name")
            if path.is_file():
                found |= self.in_bytes(path.read_bytes(), place)
        return found


def _spellings(canary: Canary) -> Iterator[tuple[str, bytes]]:
    # Pieces of the core and not of the value: what all keys of a shape share is no secret.
    lengths = range(len(canary.core), PIECE, -1)
    core = next(canary.core[:size] for size in lengths if canary.core[:size] in canary.value)
    # Letters and digits, so this is also what it looks like in a URL and in JSON.
    yield "plain", core.encode()
    value = canary.value.encode()
    begin = value.index(core.encode())
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + value)
        first = -(-(offset + begin) * 8 // 6)
        yield "base64", encoded[first : (offset + begin + len(core)) * 8 // 6]
