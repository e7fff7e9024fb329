"""Names of zones: what is valid, how they are built, and which of them are archives."""

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.zones.model import (
    MIGRATION_MARKER_V1,
    OUTPUT_FILE,
    SNAPSHOT_FILE,
    TEMPLATE_PROMOTE_MARKER_V1,
    agent_archive_zone,
    agent_current_zone,
    archive_time,
    archives_limit,
    definition_of,
    is_valid_definition_id,
    require_definition_id,
    require_file_name,
    validate_and_current,
)
from tests.marks import demands, each_case

VALID = ("a", "abc-123_DEF", "0192f0c1-0000-7000-8000-000000000001", "x" * 1000)
REFUSED = (
    *("", "../etc", "a:b", "a/b", "a b", "a.b", "a\n", "\x00", "a\x00", "café"),
    *("\u0661\u0662", "a\u200b", "\ud800"),
)


@demands("S4-002")
@each_case("text", VALID)
def test_letters_digits_underscores_and_dashes_make_an_id(text: str) -> None:
    assert is_valid_definition_id(text)
    assert require_definition_id(text) == text


@demands("S4-002", "S4-003", "S4-004f")
@each_case("text", REFUSED)
def test_anything_else_is_refused_with_the_same_beginning(text: str) -> None:
    assert not is_valid_definition_id(text)
    with pytest.raises(Invalid) as caught:
        validate_and_current(text)

    assert caught.value.code is Code.INVALID_DEFINITION_ID
    assert caught.value.message.startswith("INVALID_DEFINITION_ID: expected [A-Za-z0-9_-]+, got ")
    assert caught.value.details == {"value": text}


def test_a_refused_id_is_shown_escaped_and_cut() -> None:
    with pytest.raises(Invalid) as caught:
        require_definition_id('"\n' + "ä" * 200)

    escaped = "\\u00e4" * 98
    assert caught.value.message == (
        f'INVALID_DEFINITION_ID: expected [A-Za-z0-9_-]+, got "\\"\\n{escaped}"'
    )


@demands("S4-004", "S4-004b", "S4-004c", "S4-004d", "S4-004f")
def test_zones_are_named_after_their_agent() -> None:
    assert agent_current_zone("a") == validate_and_current("a") == "agent:a:current"
    assert agent_archive_zone("a", 7) == "agent:a:archive:7"


@demands("S4-004e")
@pytest.mark.parametrize("text", ["", "a:b"])
def test_building_a_name_asserts_that_the_id_was_judged(text: str) -> None:
    with pytest.raises(AssertionError):
        agent_current_zone(text)
    with pytest.raises(AssertionError):
        agent_archive_zone(text, 1)


@demands("S4-103")
def test_the_names_of_files_and_markers_are_those_others_know() -> None:
    assert (SNAPSHOT_FILE, OUTPUT_FILE) == ("output.state.json", "output")
    assert MIGRATION_MARKER_V1 == "migration_agent_zones_v1.flag"
    assert TEMPLATE_PROMOTE_MARKER_V1 == "migration_template_promote_v1.flag"


@each_case(
    ("zone", "ms"),
    [
        ("agent:a:archive:0", 0),
        ("agent:a:archive:1700000000000", 1_700_000_000_000),
        (f"agent:a:archive:{2**63 - 1}", 2**63 - 1),
        (f"agent:a:archive:{2**63}", None),
        ("agent:a:archive:" + "9" * 5000, None),
        ("agent:a:archive:", None),
        ("agent:a:archive:01", None),
        ("agent:a:archive:+1", None),
        ("agent:a:archive:-1", None),
        ("agent:a:archive: 1", None),
        ("agent:a:archive:1 ", None),
        ("agent:a:archive:1\n", None),
        ("agent:a:archive:\u0661", None),
        ("agent:a:archive:1:2", None),
        ("agent:a-b:archive:1", None),
        ("agent:a:current", None),
    ],
)
def test_only_one_spelling_of_a_time_makes_an_archive(zone: str, ms: int | None) -> None:
    assert archive_time("a", zone) == ms


def test_whose_zone_it_is_can_be_told_from_its_name() -> None:
    named = ["agent:a:current", "agent:b:archive:1"]
    others = ["agent::current", "agent:a:archive:x", "agent:a", "block:a:current", "agent:a:b:c:d"]

    assert [definition_of(zone) for zone in named] == ["a", "b"]
    assert [definition_of(zone) for zone in others] == [None] * 5


@each_case("name", ["output", "output.state.json", "a" * 128, "..."])
def test_a_plain_name_may_be_a_files(name: str) -> None:
    assert require_file_name(name) == name


@each_case("name", ["", ".", "..", "a/b", "a" * 129, "ä", "a\n"])
def test_other_names_of_files_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="1 to 128 characters"):
        require_file_name(name)


def test_a_limit_of_archives_has_a_usual_and_a_most() -> None:
    assert [archives_limit(wanted) for wanted in (None, 0, 2, 100, 1000)] == [20, 20, 2, 100, 100]
    with pytest.raises(Invalid):
        archives_limit(-1)
