"""Holds the rows of the proof and the tests that prove them together, in both directions."""

import re
from collections.abc import Iterable

from tests.marks import TESTS, marked_tests
from tests.seeds.manifest import capabilities
from tests.stores import CONTRACT, EMBEDDED, QUICK, USUAL
from tests.torture.render import DOCUMENT, render
from tests.torture.rows import Row, rows

NEEDS = {"L/v", "T or v", "L or N", "B at release", "N", "T", "P", "B", "J"}


def proven() -> set[str]:
    """Return the rows that a test proves."""
    return {id for test in marked_tests(word="proves(") for id in test.proves}


def test_the_rows_are_complete_and_in_order() -> None:
    expected = [f"R{n:02}" for n in range(1, 68)] + [f"S{n:02}" for n in range(1, 36)]

    assert [row.id for row in rows()] == expected


def test_every_row_says_what_it_does_and_how_often() -> None:
    silent = [
        row.id
        for row in rows()
        if not all((row.title, row.promise, row.test, row.torture, row.release))
        or not set(row.needs) <= NEEDS
    ]

    assert silent == []


def test_every_row_is_proven_or_planned_with_a_known_capability() -> None:
    assert unsettled(rows(), proven()) == []


def test_an_unsettled_row_is_named() -> None:
    bare = Row("R01", "kill", ("D1",), (), "1", "1", "1")
    planned = Row("R02", "kill", ("D1",), (), "1", "1", "1", planned="notebook")
    unknown = Row("R03", "kill", ("D1",), (), "1", "1", "1", planned="flying")

    assert unsettled([bare, planned, unknown], {"R02"}) == [
        "R01 is neither proven nor planned",
        "R02 is planned and has a proof",
        "R03 waits for the unknown capability 'flying'",
    ]


def test_every_proof_names_a_row() -> None:
    assert proven() - {row.id for row in rows()} == set()


def test_every_row_of_the_small_run_has_one_test_in_make_test() -> None:
    proofs = {test.name: test.proves for test in marked_tests(word="proves(")}
    wrong = [
        row.id
        for row in rows()
        if not row.planned
        and (row.id not in proofs.get(row.quick, ()) if row.test != "–" else row.quick)
    ]

    assert wrong == [], "`quick` in rows.toml names a test that proves the row"


def test_the_files_that_run_on_postgres_are_there() -> None:
    named = {
        f"{folder}/{name}"
        for table in (CONTRACT, USUAL, QUICK)
        for folder, names in table.items()
        for name in names
    }
    files = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    there = {f"{path.parts[0]}/{name}" for path in files for name in (path.stem, "*")}
    by_folder = {f"{path.parent.name}/{path.stem}" for path in files}

    assert (named - there, EMBEDDED.keys() - by_folder) == (set(), set())


def test_the_rows_prove_exactly_the_promises_we_publish() -> None:
    published = re.findall(r"^- \*\*([DP][0-9]+) ", DOCUMENT.read_text("utf-8"), re.MULTILINE)

    assert {promise for row in rows() for promise in row.promise} == set(published)


def test_the_published_rows_are_the_rendering_of_the_list() -> None:
    document = DOCUMENT.read_text("utf-8")

    assert document == render(document), "run: python -m tests.torture.render"


def unsettled(listed: Iterable[Row], proven: set[str]) -> list[str]:
    """Return each row that nobody proves and nobody brings, or that says both."""
    found = []
    for row in listed:
        if not row.planned and row.id not in proven:
            found.append(f"{row.id} is neither proven nor planned")
        if row.planned and row.id in proven:
            found.append(f"{row.id} is planned and has a proof")
        if row.planned and row.planned not in capabilities():
            found.append(f"{row.id} waits for the unknown capability {row.planned!r}")
    return found
