"""Writes `docs/seeds.md` from the manifests: `python -m tests.seeds.render`."""

from collections import Counter
from pathlib import Path

from tests.seeds.manifest import SEEDS, STATUSES, Entry, capabilities, entries

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "seeds.md"

INTRODUCTION = """\
# What was asked, and where it is met

Holdfast answers five documents, called seeds, that each describe a durable session layer in their
own words. Every sentence of theirs that demands something is listed here word for word (line breaks
aside), with what became of it: *met* by the tests named, *adapted* or *refused* for the reason
given, or *planned* with a capability still to come. A note on a planned sentence says already where
we will not follow it to the letter.

This page is generated from `tests/seeds/`, and a test holds it to the tests it names."""


def render() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, _counts(), _still_to_come()]
    return "\n\n".join(parts + [_seed(seed) for seed in SEEDS]) + "\n"


def _counts() -> str:
    lines = [f"| seed | {' | '.join(STATUSES)} | in all |", f"|---|{'---|' * len(STATUSES)}---|"]
    for seed in SEEDS:
        lines.append(_count_line(seed, [entry for entry in entries() if entry.seed == seed]))
    return "\n".join([*lines, _count_line("in all", list(entries()))])


def _count_line(title: str, counted: list[Entry]) -> str:
    by_status = Counter(entry.status for entry in counted)
    numbers = [by_status[status] for status in STATUSES] + [len(counted)]
    return f"| {title} | {' | '.join(map(str, numbers))} |"


def _still_to_come() -> str:
    planned = Counter(entry.capability for entry in entries() if entry.status == "planned")
    lines = ["| capability | brings | sentences still planned |", "|---|---|---|"]
    for name, title in capabilities().items():
        lines.append(f"| {name} | {title} | {planned[name]} |")
    return "\n".join(lines)


def _seed(seed: str) -> str:
    lines = [f"## {seed}: {SEEDS[seed]}", ""]
    lines += [
        "| id | the sentence | status | where it is met, or what differs |",
        "|---|---|---|---|",
    ]
    return "\n".join(lines + [_line(entry) for entry in entries() if entry.seed == seed])


def _line(entry: Entry) -> str:
    status = f"planned: {entry.capability}" if entry.status == "planned" else entry.status
    tests = ", ".join(f"`{test}`" for test in entry.tests)
    where = "; ".join(part for part in (tests, _cell(entry.note)) if part)
    return f"| {entry.id} | {_cell(entry.quote)} | {status} | {where or '–'} |"


def _cell(text: str) -> str:
    # A bar would end the cell and an angle bracket would begin a tag, in a quote as anywhere.
    return text.replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    DOCUMENT.write_text(render(), "utf-8")
