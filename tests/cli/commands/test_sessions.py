"""`holdfast sessions …`, and its other name for the list."""

import asyncio
import io
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.ids import SessionId
from tests.cli.conftest import Cli, Ran
from tests.marks import each_case

NOBODY = "019b7a00-0000-7000-8000-000000000000"


def test_an_empty_list_is_no_error(cli: Cli) -> None:
    plain, listed = cli("sessions", "list"), cli("chat-list", "--json")

    assert (plain.code, plain.out) == (0, "")
    assert plain.err == "No sessions; start one with `holdfast chat`.\n"
    assert listed.document == {"data": [], "next_cursor": None}


def test_the_list_shows_what_was_written_to_last_first(cli: Cli) -> None:
    cli("chat", "What is 2+3?", "--title", "First")
    cli("chat", "hello", "--title", "Second")

    heading, *rows = (line.split("\t") for line in cli("sessions", "list").out.splitlines())

    assert heading == ["ID", "STATUS", "UPDATED", "AGENT", "COST", "TITLE"]
    assert [(row[1], row[3], row[4], row[5]) for row in rows] == [
        ("idle", "holdfast", "$0.0000", "Second"),
        ("idle", "holdfast", "$0.0000", "First"),
    ]


def test_the_list_goes_page_by_page(cli: Cli) -> None:
    for number in range(3):
        cli("chat", "hello", "--title", f"Session {number}")

    first = cli("sessions", "list", "--limit", "2", "--json").document
    second = cli("sessions", "list", "--limit", "2", "--cursor", first["next_cursor"], "--json")
    whole = cli("chat-list", "--limit", "1", "--all", "--json").document
    plain = cli("sessions", "list", "--limit", "2")

    titles = [each["title"] for each in first["data"] + second.document["data"]]
    assert titles == ["Session 2", "Session 1", "Session 0"]
    assert second.document["next_cursor"] is None
    assert [each["title"] for each in whole["data"]] == titles
    assert whole["next_cursor"] is None
    # In a pipe nobody reads a remark.
    assert plain.err == ""


@each_case("limit", ["0", "201", "-1"])
def test_a_limit_out_of_range_is_invalid(cli: Cli, limit: str) -> None:
    ran = cli("sessions", "list", "--limit", limit, "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_limit")


def test_a_foreign_cursor_is_invalid(cli: Cli) -> None:
    ran = cli("sessions", "list", "--cursor", "nonsense", "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_cursor")


def test_the_list_can_be_narrowed(cli: Cli) -> None:
    cli("agents", "create", "--name", "Other")
    cli("chat", "hello", "--agent", "other", "--title", "Tea time")
    cli("chat", "hello", "--title", "Coffee")
    closed = cli("sessions", "list", "--query", "coffee", "--json").document["data"][0]["id"]
    cli("sessions", "close", closed)

    def titles(*flags: str) -> list[str]:
        data = cli("sessions", "list", "--json", *flags).document["data"]
        return [each["title"] for each in data]

    assert titles("--agent", "other") == ["Tea time"]
    assert titles("--status", "completed") == ["Coffee"]
    assert titles("--status", "completed", "--status", "idle") == ["Coffee", "Tea time"]
    assert titles("--tag", "nothing") == []
    assert cli("sessions", "list", "--agent", "nobody").code == 4
    assert cli("sessions", "list", "--status", "sleeping").code == 2


def test_a_session_is_shown_with_its_cost(cli: Cli, chatted: str) -> None:
    form = cli("sessions", "show", chatted.upper(), "--json").document
    plain = cli("sessions", "show", chatted)

    assert (form["id"], form["state"], form["turn"]) == (chatted, "idle", 1)
    assert form["cost"] == {"microcents": 0, "priced": True}
    facts = dict(line.split(None, 1) for line in plain.out.splitlines())
    assert (facts["id"], facts["status"], facts["cost"]) == (chatted, "idle", "$0.0000")


def test_messages_are_printed_in_their_order(cli: Cli, chatted: str) -> None:
    form = cli("sessions", "messages", chatted, "--json").document
    plain = cli("sessions", "messages", chatted)

    assert [(each["sequence"], each["role"]) for each in form["data"]] == [
        (1, "user"),
        (2, "assistant"),
    ]
    assert form["data"][0]["content"] == {"text": "What is 2+3?"}
    assert form["next_cursor"] is None
    assert plain.out.startswith("> What is 2+3?\n2+3 = 5\n")


def test_messages_go_page_by_page(cli: Cli, chatted: str) -> None:
    first = cli("sessions", "messages", chatted, "--limit", "1", "--json").document
    second = cli("sessions", "messages", chatted, "--cursor", first["next_cursor"], "--json")
    behind = cli("sessions", "messages", chatted, "--after", "1", "--json")
    plain = cli("sessions", "messages", chatted, "--limit", "1")

    assert [each["sequence"] for each in first["data"]] == [1]
    assert second.document == behind.document
    assert [each["sequence"] for each in behind.document["data"]] == [2]
    assert plain.err == "More results: --cursor 1\n"


@each_case("cursor", ["x", "-1", "٣", "9" * 5000])
def test_a_wrong_cursor_of_messages_is_invalid(cli: Cli, chatted: str, cursor: str) -> None:
    ran = cli("sessions", "messages", chatted, f"--cursor={cursor}", "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_cursor")


def test_an_answer_that_was_cut_off_says_so_also_at_the_end_of_a_page(
    cli: Cli, script: Callable[[str], str]
) -> None:
    model = script("[{text: half an answer, error: unavailable}]")
    session = cli("chat", "hello", "--model", model, "--json").lines[0]["sessionId"]

    page = cli("sessions", "messages", session, "--limit", "2", "--json").document

    assert [each.get("interrupted") for each in page["data"]] == [None, True]


def test_events_are_one_document_or_a_table(cli: Cli, chatted: str) -> None:
    form = cli("sessions", "events", chatted, "--json").document
    plain = cli("sessions", "events", chatted)

    assert [each["sequenceNumber"] for each in form["data"]] == list(range(1, 9))
    assert form["data"][0]["type"] == "session:started"
    assert form["next_cursor"] is None
    heading, *rows = (line.split("\t") for line in plain.out.splitlines())
    assert heading == ["NUMBER", "TIME", "TYPE", "DATA"]
    assert [row[2] for row in rows] == [each["type"] for each in form["data"]]


def test_events_go_page_by_page_and_remember_what_came_before(cli: Cli, chatted: str) -> None:
    whole = cli("sessions", "events", chatted, "--json").document["data"]

    first = cli("sessions", "events", chatted, "--limit", "4", "--json").document
    second = cli("sessions", "events", chatted, "--cursor", first["next_cursor"], "--json").document

    assert first["data"] + second["data"] == whole


class Leaving(io.StringIO):
    """A reader that leaves after some lines."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self._left = lines

    def write(self, text: str) -> int:
        if self._left == 0:
            raise BrokenPipeError
        self._left -= 1
        return super().write(text)


@pytest.mark.parametrize("flags", [["--json"], []])
def test_events_are_followed_until_their_reader_leaves(
    cli: Cli, chatted: str, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cli("sessions", "events", chatted, "--json").document["data"]
    reader = Leaving(lines=5)

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", reader)
        ran = cli("sessions", "events", chatted, "--follow", "--after", "2", *flags)

    lines = reader.getvalue().splitlines()
    assert (ran.code, len(lines)) == (0, 5)
    if flags:
        assert [json.loads(line) for line in lines] == whole[2:7]
    else:
        assert [line.split("\t")[2] for line in lines] == [each["type"] for each in whole[2:7]]


def test_a_session_that_asked_nobody_costs_nothing(cli: Cli, chatted: str) -> None:
    fork = cli("sessions", "fork", chatted, "--json").document["id"]

    assert cli("sessions", "show", fork, "--json").document["cost"] == {
        "microcents": 0,
        "priced": True,
    }


def test_a_cursor_from_the_future_is_a_conflict(cli: Cli, chatted: str) -> None:
    ran = cli("sessions", "events", chatted, "--after", "99", "--json")

    assert (ran.code, ran.error["error"]) == (5, "cursor_ahead")


def test_the_turn_cap_of_a_session_is_raised(cli: Cli, chatted: str) -> None:
    raised = cli("sessions", "update", chatted, "--turn-cap", "70", "--title", "Long", "--json")
    empty = cli("sessions", "update", chatted, "--json")
    wrong = cli("sessions", "update", chatted, "--turn-cap", "0", "--json")

    assert (raised.document["turn_cap"], raised.document["title"]) == (70, "Long")
    assert (empty.code, empty.error["error"]) == (2, "invalid_input")
    assert (wrong.code, wrong.error["error"]) == (2, "invalid_input")
    assert cli("sessions", "show", chatted, "--json").document["turn_cap"] == 70


def test_a_session_is_closed_and_opened_again(cli: Cli, chatted: str) -> None:
    closed = cli("sessions", "close", chatted, "--as", "cancelled", "--reason", "tea", "--json")
    again = cli("sessions", "close", chatted)
    opened = cli("sessions", "resume", chatted, "--json")

    assert (closed.document["state"], closed.document["reason"]) == ("cancelled", "tea")
    assert again.out == f"Session {chatted} is cancelled.\n"
    assert (opened.document["state"], opened.document["reason"]) == ("idle", None)


def test_a_turn_that_waits_is_told_of(cli: Cli, home: Path, chatted: str) -> None:
    leave_a_turn_waiting(home, chatted)

    ran = cli("sessions", "resume", chatted)

    assert ran.out == f"Session {chatted} is idle.\n"
    assert f"holdfast chat --resume {chatted}" in ran.err


def test_interrupting_an_idle_session_changes_nothing(cli: Cli, chatted: str) -> None:
    ran = cli("sessions", "interrupt", chatted)

    told = cli("sessions", "interrupt", chatted, "--json").document

    assert (ran.code, ran.out) == (0, f"Session {chatted} is idle.\n")
    shown = cli("sessions", "show", chatted, "--json").document
    assert told == {"session": shown, "interrupted": False, "turn": None}


def test_a_session_is_forked_at_a_message(cli: Cli, chatted: str) -> None:
    fork = cli("sessions", "fork", chatted, "--at", "1", "--title", "Fork", "--json").document
    plain = cli("sessions", "fork", chatted)
    wrong = cli("sessions", "fork", chatted, "--at", "9", "--json")

    assert fork["forked_from"] == {"session_id": chatted, "sequence": 1}
    assert (fork["title"], fork["message_count"]) == ("Fork", 1)
    assert plain.out.endswith(f"a fork of {chatted}.\n")
    assert (wrong.code, wrong.error["error"]) == (4, "message_not_found")


def test_a_deleted_session_is_gone(cli: Cli, chatted: str) -> None:
    ran = cli("sessions", "delete", chatted, "--json")

    assert ran.document == {"deleted": [chatted]}
    assert cli("sessions", "show", chatted).code == 4
    assert cli("sessions", "delete", chatted).code == 4


def test_a_fork_leaves_a_turn_that_waits_to_that_turn(cli: Cli, chatted: str, home: Path) -> None:
    async def wait() -> None:
        async with open_holdfast(home, scope=RunScope.NONE) as house:
            await house.send(SessionId(chatted), "And 4+4?")

    asyncio.run(wait())

    fork = cli("sessions", "fork", chatted, "--json").document

    assert fork["forked_from"] == {"session_id": chatted, "sequence": 2}


def test_forks_are_in_the_way_of_a_deletion(cli: Cli, chatted: str) -> None:
    fork = cli("sessions", "fork", chatted, "--json").document["id"]

    refused = cli("sessions", "delete", chatted, "--json")
    both = cli("sessions", "delete", chatted, "--cascade", "--detach")
    detached = cli("sessions", "delete", chatted, "--detach")

    assert (refused.code, refused.error["error"]) == (5, "session_has_forks")
    assert refused.error["details"] == {"forks": [fork]}
    assert both.code == 2
    assert detached.out == f"Session {chatted} deleted.\n"
    assert cli("sessions", "messages", fork, "--json").document["data"][0]["sequence"] == 1


def test_a_session_is_deleted_with_its_forks(cli: Cli, chatted: str) -> None:
    fork = cli("sessions", "fork", chatted, "--json").document["id"]

    ran = cli("sessions", "delete", chatted, "--cascade")

    assert ran.out == f"Sessions {fork}, {chatted} deleted.\n"


def test_sessions_are_verified(cli: Cli, chatted: str) -> None:
    one = cli("sessions", "verify", chatted, "--json").document
    every = cli("sessions", "verify", "--json").document
    plain = cli("sessions", "verify")

    assert (one["session_id"], one["messages"], one["faults"]) == (chatted, 2, [])
    assert every == {"data": [one]}
    assert (plain.code, plain.out) == (
        0,
        "1 of 1 sessions are intact (2 messages checked).\n",
    )


def test_a_changed_message_is_found(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    session = cli("chat", "What is 2+3?", "--json").lines[0]["sessionId"]
    change_a_message(home / "history.db")

    plain, form = cli("sessions", "verify"), cli("sessions", "verify", session, "--json")

    assert (plain.code, form.code) == (1, 1)
    assert plain.out.startswith(f"{session}: ")
    assert plain.out.endswith("0 of 1 sessions are intact (0 messages checked).\n")
    assert len(form.document["faults"]) == 1


VERBS = ["show", "messages", "events", "resume", "interrupt", "fork", "close", "delete", "verify"]
TAKING_IDS = [*(["sessions", verb] for verb in VERBS), ["chat-resume"], ["chat", "--resume"]]


@each_case("verb", VERBS)
def test_an_unknown_session_is_not_found(cli: Cli, verb: str) -> None:
    ran: Ran = cli("sessions", verb, NOBODY, "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (4, "", "session_not_found")


@pytest.mark.parametrize("letters", [8, 13, 35])
def test_the_beginning_of_an_id_is_enough_everywhere(cli: Cli, chatted: str, letters: int) -> None:
    # What a fork leaves keeps its parent, and after the last two there is nothing to ask for.
    lines = [line for line in TAKING_IDS if line[1:] not in (["fork"], ["close"], ["delete"])]

    ran = [
        cli(*line, chatted[:letters].upper())
        for line in [*lines, ["sessions", "close"], ["sessions", "delete"]]
    ]

    assert [each.err for each in ran if each.code != 0] == []


def test_the_beginning_of_a_session_is_told_whole(cli: Cli, chatted: str) -> None:
    assert cli("sessions", "show", chatted[:8], "--json").document["id"] == chatted
    assert cli("sessions", "fork", chatted[:8]).out.endswith(f"a fork of {chatted}.\n")


@pytest.fixture
def twins(home: Path) -> list[str]:
    """Open sessions whose ids begin alike."""
    ids = [f"aaaaaaaa-0000-4000-8000-00000000000{number}" for number in range(3)]
    open_sessions(home, ids)
    return ids


@each_case("line", TAKING_IDS)
def test_a_beginning_that_several_sessions_have_names_them(
    cli: Cli, twins: list[str], line: list[str]
) -> None:
    ran = cli(*line, "aaaaaaaa", "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (2, "", "invalid_id")
    assert set(ran.error["details"]["sessions"]) == set(twins)
    assert all(twin in ran.error["message"] for twin in twins)
    assert cli("sessions", "show", twins[1][:-1]).code == 2
    assert cli("sessions", "show", twins[1]).code == 0


@each_case("line", TAKING_IDS, ids=" ".join)
def test_a_beginning_of_nothing_and_one_that_is_too_short_are_not_found(
    cli: Cli, chatted: str, line: list[str]
) -> None:
    unknown = cli(*line, "ffffffff", "--json")
    short = cli(*line, chatted[:7], "--json")

    for ran in (unknown, short):
        assert (ran.code, ran.out, ran.error["error"]) == (4, "", "session_not_found")
    assert short.error["message"].startswith("Write at least 8 characters of a session's id")


def test_a_beginning_is_looked_for_on_every_page(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.domain.queries.LIMIT_MOST", 2)
    ids = [f"{number}aaaaaaa-0000-4000-8000-000000000000" for number in range(5)]
    open_sessions(home, ids)

    found = [cli("sessions", "show", each[:8], "--json").document["id"] for each in ids]

    assert found == ids


@each_case(
    ("line", "told"),
    [
        (["sessions", "list"], "No sessions; start one with `holdfast chat`."),
        (
            ["sessions", "list", "--tag", "x"],
            "No matching sessions; remove a filter or the cursor.",
        ),
        (["chat-list", "--status", "idle"], "No matching sessions; remove a filter or the cursor."),
        (["sessions", "verify"], "No sessions to check; start one with `holdfast chat`."),
        (
            ["agents", "list"],
            "No active agents; create one with `holdfast agents create --name NAME`.",
        ),
        (["agents", "list", "--query", "x"], "No matching agents; remove a filter or the cursor."),
        (["repos", "list"], "No repositories; register one with `holdfast repos add PATH`."),
    ],
)
def test_an_empty_listing_says_what_to_do(cli: Cli, line: list[str], told: str) -> None:
    ran = cli(*line)

    assert (ran.code, ran.out, ran.err) == (0, "", f"{told}\n")


def test_an_empty_session_says_what_to_do(cli: Cli, home: Path) -> None:
    session = "aaaaaaaa-0000-4000-8000-000000000000"
    open_sessions(home, [session])

    messages = cli("sessions", "messages", session)
    behind = cli("sessions", "messages", session, "--after", "3")
    events = cli("sessions", "events", session, "--after", "1")

    assert messages.err == f"No messages; send the first with `holdfast chat --resume {session}`.\n"
    assert behind.err == "There is no message after 3.\n"
    assert events.err == "There is no event after 1; use --follow to wait for the next.\n"
    assert [ran.out for ran in (messages, behind, events)] == ["", "", ""]


def open_sessions(home: Path, ids: list[str]) -> None:
    """Open sessions of these ids."""
    import asyncio

    from holdfast import RunScope, open_holdfast

    async def opened() -> None:
        async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
            for each in ids:
                await holdfast.open(id=each)

    asyncio.run(opened())


def leave_a_turn_waiting(home: Path, session: str) -> None:
    """Write a message down in a house that plays no turns."""
    import asyncio

    from holdfast import RunScope, open_holdfast
    from holdfast.domain.ids import SessionId

    async def send() -> None:
        async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
            await holdfast.send(SessionId(session), "still there?")

    asyncio.run(send())


def change_a_message(file: Path) -> None:
    """Change one byte of a plain store's record behind everybody's back."""
    with sqlite3.connect(file) as database:
        database.execute("DROP TRIGGER messages_are_never_edited")
        database.execute(
            "UPDATE messages SET parts = CAST(replace(parts, '2+3', '2+4') AS BLOB) "
            "WHERE sequence = 1"
        )
    database.close()
