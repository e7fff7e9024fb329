"""What the seeds demand, as values: one entry per sentence, read from the files beside this one.

It says whether an entry is well formed; whether its tests exist is for `test_manifest.py`.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SEEDS = {
    "S0": "sessions, turns, tools, export",
    "S1": "repository-bound sessions under `/api`",
    "S2": "agents, sessions, messages, events under `/v1`",
    "S3": "observed session history over MCP",
    "S4": "agent-anchored zones",
}
STATUSES = ("met", "adapted", "refused", "planned")


@dataclass(frozen=True)
class Entry:
    """One sentence of a seed, word for word, and what became of it."""

    id: str
    seed: str
    quote: str
    status: str
    capability: str = ""
    tests: tuple[str, ...] = ()
    note: str = ""


@cache
def entries() -> tuple[Entry, ...]:
    """Return every entry, seed by seed, in the order of the seed; an unknown key is a TypeError."""
    return tuple(
        Entry(id=id, seed=seed, **(fields | {"tests": tuple(fields.get("tests", ()))}))
        for seed in SEEDS
        for id, fields in tomllib.loads((FOLDER / f"{seed}.toml").read_text("utf-8")).items()
    )


@cache
def capabilities() -> dict[str, str]:
    """Return the title of each capability by its name, in the order they are built."""
    listed = tomllib.loads((FOLDER / "capabilities.toml").read_text("utf-8"))
    return {name: fields["title"] for name, fields in listed.items()}


def faults(entry: Entry) -> Iterator[str]:
    """Yield what is wrong with the form of an entry."""
    if not re.fullmatch(rf"{entry.seed}-[0-9]{{3}}[a-z]?", entry.id):
        yield f"{entry.id} is not an id of {entry.seed}"
    if not entry.quote.strip():
        yield f"{entry.id} quotes nothing"
    if entry.status not in STATUSES:
        yield f"{entry.id} has the unknown status {entry.status!r}"
    if entry.capability and entry.capability not in capabilities():
        yield f"{entry.id} names the unknown capability {entry.capability!r}"
    if entry.status == "planned" and not entry.capability:
        yield f"{entry.id} is planned without a capability"
    if entry.status in ("met", "adapted") and not entry.tests:
        yield f"{entry.id} is {entry.status} without a test"
    if entry.status in ("refused", "planned") and entry.tests:
        yield f"{entry.id} is {entry.status} and names a test"
    if entry.status in ("adapted", "refused") and not entry.note.strip():
        yield f"{entry.id} is {entry.status} without a note that says what differs and why"
