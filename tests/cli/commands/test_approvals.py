"""`holdfast approvals`: questions that wait, answered by hand."""

import asyncio
from pathlib import Path

import pytest

from holdfast import open_holdfast
from holdfast.config import Config
from holdfast.domain.approvals import Approval, ApprovalState
from tests.builders import an_id
from tests.cli.conftest import Cli
from tests.houses import script
from tests.marks import each_case
from tests.tooled import asks, call, question, says, started


@pytest.fixture
def asked(home: Path, tmp_path: Path) -> Approval:
    """Leave a question waiting, whose process has gone."""
    return ask(home, tmp_path / "desk")


def ask(home: Path, desk: Path, path: str = "a.txt", content: str = "hi\n") -> Approval:
    """Have an agent ask whether it may write a file, and go before anybody answers."""

    async def left() -> Approval:
        home.parent.mkdir(exist_ok=True, parents=True)
        steps = asks(call("write_file", path=path, content=content)), says("so be it")
        folder = desk.parent / f"script-{desk.name}-{path}"
        folder.mkdir()
        config = Config(home=home, default_model=script(folder, *map(dict, steps)))
        async with open_holdfast(config=config) as house:
            return await question(house, await started(house, desk))

    return asyncio.run(left())


def test_without_questions_the_list_is_empty(cli: Cli) -> None:
    plain, ran = cli("approvals", "list"), cli("approvals", "list", "--json")

    assert (plain.code, plain.out, plain.err) == (0, "", "No pending approval requests.\n")
    assert ran.document == {"data": [], "next_cursor": None}


def test_a_question_that_waits_is_listed_and_shown_whole(
    cli: Cli, asked: Approval, tmp_path: Path
) -> None:
    heading, row = cli("approvals", "list").out.splitlines()
    shown = cli("approvals", "show", asked.id)
    (form,) = cli("approvals", "list", "--json").document["data"]

    assert heading.split("\t") == ["ID", "STATE", "ASKED", "TOOL", "SESSION", "QUESTION"]
    cells = row.split("\t")
    assert (cells[0], cells[1], cells[3], cells[4]) == (
        asked.id,
        "waiting",
        "write_file",
        asked.session_id,
    )
    assert shown.out.endswith(f"\n{tmp_path}/desk/a.txt (new file)\n+hi\n")
    assert form["question"] == f"{tmp_path}/desk/a.txt (new file)\n+hi"
    assert form == cli("approvals", "show", asked.session_id, asked.id, "--json").document


@pytest.mark.parametrize("named", ["whole", "beginning", "with its session"])
def test_a_question_is_answered_by_its_id(cli: Cli, asked: Approval, named: str) -> None:
    words = {
        "whole": [asked.id],
        "beginning": [asked.id[:13]],
        "with its session": [asked.session_id[:13], asked.id],
    }

    ran = cli("approvals", "answer", *words[named], "--allow", "--json")

    form = ran.document
    assert ran.code == 0
    assert (form["id"], form["state"], form["scope"], form["answered_by"]) == (
        asked.id,
        "allowed",
        "once",
        "cli",
    )


def test_a_session_with_one_question_is_answered_by_its_id(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    first = ask(home, tmp_path / "one")
    other = ask(home, tmp_path / "two")

    ran = cli("approvals", "answer", first.session_id, "--allow", "--json")
    again = cli("approvals", "answer", first.session_id, "--allow", "--json")
    short = cli("approvals", "answer", other.session_id[:23], "--deny", "--json")

    assert (ran.code, ran.document["id"], ran.document["state"]) == (0, first.id, "allowed")
    assert (again.code, again.error["error"]) == (4, "approval_not_found")
    assert (short.code, short.document["id"], short.document["state"]) == (0, other.id, "denied")


def test_the_first_answer_counts_and_the_same_one_is_heard_again(cli: Cli, asked: Approval) -> None:
    named = (asked.session_id, asked.id)

    first = cli("approvals", "answer", *named, "--deny", "--note", "not now")
    again = cli("approvals", "answer", *named, "--deny", "--json")
    other = cli("approvals", "answer", *named, "--allow", "--json")

    assert first.out == f"write_file in session {asked.session_id} is denied.\n"
    assert (again.code, again.document["note"]) == (0, "not now")
    assert (other.code, other.error["error"]) == (5, "approval_closed")


def test_an_answer_can_hold_for_the_session_and_be_taken_back(cli: Cli, asked: Approval) -> None:
    named = (asked.session_id, asked.id)

    given = cli("approvals", "answer", *named, "--allow", "--for-session")
    listed = cli("approvals", "list", "--session", asked.session_id, "--json").document["data"]
    taken = cli("approvals", "revoke", *named)

    assert given.out.endswith("is allowed for the whole session.\n")
    assert [each["scope"] for each in listed] == ["session"]
    assert taken.out == "Revoked; write_file has to ask again.\n"
    after = cli("approvals", "show", *named, "--json").document
    assert (after["state"], after["scope"]) == ("allowed", "once")


def test_what_has_to_be_seen_each_time_cannot_be_allowed_for_a_session(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    asked = ask(home, tmp_path / "desk", "Makefile")

    ran = cli("approvals", "answer", asked.id, "--allow", "--for-session", "--json")

    assert (ran.code, ran.error["error"]) == (5, "option_not_offered")


def test_a_digest_answers_only_what_was_seen(cli: Cli, asked: Approval) -> None:
    other = cli("approvals", "answer", asked.id, "--allow", "--digest", "00", "--json")
    same = cli("approvals", "answer", asked.id, "--allow", "--digest", asked.question.digest)

    assert (other.code, other.error["error"]) == (5, "approval_closed")
    assert same.code == 0


@each_case(
    ("flags", "code", "error"),
    [
        ([], 2, "invalid_input"),
        (["--allow", "--deny"], 2, "invalid_input"),
        (["--deny", "--for-session"], 2, "invalid_input"),
        (["--deny", "--note", "x" * 501], 2, "invalid_input"),
    ],
)
def test_an_answer_has_to_mean_something(
    cli: Cli, asked: Approval, flags: list[str], code: int, error: str
) -> None:
    ran = cli("approvals", "answer", asked.id, *flags, "--json")

    assert (ran.code, ran.out) == (code, "")
    assert ran.error["error"] in {error, "invalid_text"}
    assert cli("approvals", "show", asked.id, "--json").document["state"] == "waiting"


def test_a_question_that_there_is_not(cli: Cli, asked: Approval) -> None:
    alone = cli("approvals", "show", an_id(9), "--json")
    inside = cli("approvals", "show", asked.session_id, "nothing", "--json")
    short = cli("approvals", "show", asked.id[:4], "--json")

    assert [each.error["error"] for each in (alone, inside, short)] == ["approval_not_found"] * 3
    assert [each.code for each in (alone, inside, short)] == [4, 4, 4]


def test_lists_are_narrowed_and_paged(cli: Cli, home: Path, tmp_path: Path) -> None:
    first = ask(home, tmp_path / "one")
    second = ask(home, tmp_path / "two")

    page = cli("approvals", "list", "--limit", "1", "--json").document
    rest = cli("approvals", "list", "--cursor", page["next_cursor"], "--json").document
    one = cli("approvals", "list", "--session", second.session_id, "--state", "waiting", "--json")
    none = cli("approvals", "list", "--session", second.session_id, "--state", "denied")
    cli("approvals", "answer", first.id, "--deny")
    denied = cli("approvals", "list", "--state", "denied", "--json").document
    foreign = cli(
        "approvals", "list", "--cursor", page["next_cursor"], "--state", "denied", "--json"
    )

    assert [each["id"] for each in page["data"] + rest["data"]] == [first.id, second.id]
    assert rest["next_cursor"] is None
    assert [each["id"] for each in one.document["data"]] == [second.id]
    assert (none.out, none.err) == ("", "No matching approval requests.\n")
    assert [each["id"] for each in denied["data"]] == [first.id]
    assert (foreign.code, foreign.error["error"]) == (2, "invalid_cursor")


def test_an_answer_lets_the_turn_go_on_where_it_stopped(
    cli: Cli, asked: Approval, tmp_path: Path
) -> None:
    cli("approvals", "answer", asked.id, "--allow")

    ran = cli("chat", "--resume", asked.session_id)

    assert (ran.code, ran.out) == (0, "I wrote 3 bytes to a.txt.\n")
    assert (tmp_path / "desk" / "a.txt").read_text() == "hi\n"


def test_an_id_that_several_questions_begin_with_is_not_guessed(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    first = ask(home, tmp_path / "one")
    second = ask(home, tmp_path / "two")
    shared = shared_beginning(first.id, second.id)

    ran = cli("approvals", "answer", shared, "--allow", "--json")

    assert len(shared) >= 8
    assert (ran.code, ran.error["error"]) == (2, "invalid_id")
    assert sorted(ran.error["details"]["approvals"]) == sorted([first.id, second.id])


def shared_beginning(one: str, other: str) -> str:
    """Return what two ids have in common; they begin with the time."""
    number = next(at for at, pair in enumerate(zip(one, other, strict=True)) if len({*pair}) > 1)
    return one[:number]


def test_only_the_owner_is_asked(asked: Approval, home: Path) -> None:
    async def others() -> tuple[Approval, ...]:
        async with open_holdfast(home, owner="bob") as house:
            return (await house.approvals.list(house.owner, state=ApprovalState.WAITING)).items

    assert asked.state is ApprovalState.WAITING
    assert asyncio.run(others()) == ()
