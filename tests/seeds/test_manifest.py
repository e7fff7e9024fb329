"""Holds the manifests and the tests together, in both directions."""

from collections import Counter
from collections.abc import Iterable

from tests.marks import demands, marked_tests, misplaced_marks
from tests.seeds.manifest import Entry, entries, faults
from tests.seeds.render import DOCUMENT, render

BY_ID = {entry.id: entry for entry in entries()}


def test_every_entry_is_well_formed() -> None:
    assert [fault for entry in entries() for fault in faults(entry)] == []


def test_no_id_stands_for_two_sentences() -> None:
    counted = Counter(entry.id for entry in entries())

    assert [id for id, count in counted.items() if count > 1] == []


def test_no_sentence_of_a_seed_has_two_entries() -> None:
    counted = Counter((entry.seed, entry.quote) for entry in entries())

    assert [sentence for sentence, count in counted.items() if count > 1] == []


def test_a_malformed_entry_is_named() -> None:
    good = Entry(id="S0-001", seed="S0", quote="a session", status="met", tests=("a.py::test_a",))
    bad = (
        Entry(id="S1-001", seed="S0", quote=" ", status="done", capability="flying"),
        Entry(id="S0-002", seed="S0", quote="a", status="planned", tests=("a.py::test_a",)),
        Entry(id="S0-003", seed="S0", quote="a", status="met"),
        Entry(id="S0-004", seed="S0", quote="a", status="adapted"),
        Entry(id="S0-005", seed="S0", quote="a", status="refused"),
    )

    assert list(faults(good)) == []
    assert [len(list(faults(entry))) for entry in bad] == [4, 2, 1, 2, 1]


@demands("S0-521")
@demands("S2-130")
def test_every_test_an_entry_names_exists_and_carries_its_demand() -> None:
    assert broken_claims(entries()) == []


def test_every_demand_a_test_carries_names_an_entry_that_lists_the_test() -> None:
    unlisted = [
        f"{test.name} demands {id}"
        for test in marked_tests(word="demands(")
        for id in test.demands
        if id not in BY_ID or test.name not in BY_ID[id].tests
    ]

    assert unlisted == []


def test_marks_stand_on_tests_and_hold_plain_ids() -> None:
    assert misplaced_marks() == ()


def test_a_claim_without_its_test_is_found() -> None:
    name = "seeds/test_manifest.py::test_a_claim_without_its_test_is_found"
    absent = Entry(id="S0-001", seed="S0", quote="a", status="met", tests=("a.py::test_a",))
    unmarked = Entry(id="S0-001", seed="S0", quote="a", status="met", tests=(name,))

    assert broken_claims([absent]) == ["S0-001: a.py::test_a does not exist"]
    assert broken_claims([unmarked]) == [f"S0-001: {name} does not demand it"]


def test_the_published_list_is_the_rendering_of_the_manifests() -> None:
    assert DOCUMENT.read_text("utf-8") == render(), "run: python -m tests.seeds.render"


def broken_claims(claimed: Iterable[Entry]) -> list[str]:
    """Return each test that an entry names and that does not exist, or does not say so itself."""
    by_name = {test.name: test for test in marked_tests(word="demands(")}
    broken = []
    for entry in claimed:
        for name in entry.tests:
            if name not in by_name:
                broken.append(f"{entry.id}: {name} does not exist")
            elif entry.id not in by_name[name].demands:
                broken.append(f"{entry.id}: {name} does not demand it")
    return broken
