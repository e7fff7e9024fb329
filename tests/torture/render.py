"""Writes the table of rows into `docs/promises.md`: `python -m tests.torture.render`.

Only the lines between the two markers are made here; the text around them is written by hand.
"""

from pathlib import Path

from tests.marks import marked_tests
from tests.torture.rows import Row, rows

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "promises.md"
BEGIN = "<!-- rows -->"
END = "<!-- /rows -->"


def render(document: str) -> str:
    """Return the document with a fresh table between its markers."""
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{_table()}\n{END}{after}"


def _table() -> str:
    planned = sum(1 for row in rows() if row.planned)
    head = [
        f"{len(rows()) - planned} of {len(rows())} rows are proven, {planned} are planned.",
        "",
        "| row | what is done | promise | needs | test · torture · release | state |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(head + [_line(row) for row in rows()])


def _line(row: Row) -> str:
    cells = (
        row.id,
        row.title,
        " ".join(row.promise),
        ", ".join(row.needs) or "–",
        f"{row.test} · {row.torture} · {row.release}",
        f"planned: {row.planned}" if row.planned else f"proven by {_proofs(row)}",
    )
    return f"| {' | '.join(cells)} |"


def _proofs(row: Row) -> str:
    return ", ".join(
        f"`{test.name}`" for test in marked_tests(word="proves(") if row.id in test.proves
    )


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text("utf-8")), "utf-8")
