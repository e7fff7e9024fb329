"""`holdfast calls`: what was done, and what nobody knows the outcome of."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast import SessionId, open_holdfast, tool
from holdfast.app import Environment
from holdfast.config import Chat, Config
from holdfast.domain.events import ToolRequested, ToolStarted
from tests.cli.conftest import Cli
from tests.cli.processes import at_terminal
from tests.houses import news_until, played, script
from tests.marks import each_case
from tests.tooled import asks, call, says, started

COMMAND = {"command": "sh", "args": ["work.sh"]}


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Make a folder to work in."""
    folder = tmp_path / "desk"
    folder.mkdir()
    return folder


@pytest.fixture
def cut_off(home: Path, desk: Path, cli: Cli) -> str:
    """Leave a command whose outcome nobody knows; return its session."""
    return cut(home, desk, cli)


def cut(home: Path, desk: Path, cli: Cli) -> str:
    """Go while a command runs, and have the session taken up again."""
    (desk / "work.sh").write_text("sleep 600\n")
    if not home.exists():
        home.mkdir(mode=0o700)
    (home / "holdfast.toml").write_text('[chat]\nallowed_commands = ["sh work.sh"]\n')

    async def left() -> str:
        steps = asks(call("run_command", call_id="c1", **COMMAND)), says("so be it")
        model = script(desk, *map(dict, steps))
        chat = Chat(allowed_commands=("sh work.sh",))
        outside = Environment(is_attended=False, yes_to=frozenset({"run_command"}))
        config = Config(home=home, default_model=model, chat=chat)
        async with open_holdfast(config=config, outside=outside) as house:
            session = await started(house, desk)
            await news_until(house, session.id, ToolStarted)
        return str(session.id)

    session = asyncio.run(left())
    assert cli("chat", "--resume", session).code == 5
    (desk / "work.sh").write_text("echo done\n")
    return session


def test_a_call_that_never_ran_says_why(
    home: Path, desk: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk)
    steps = (
        asks(call("write_file", call_id="c1", path="a.txt", content="hi")),
        asks(call("read_file", call_id="c2", path="a.txt", odd=1)),
        asks(call("list_directory", call_id="c3")),
        says("so be it"),
    )
    cli("chat", "go", "--model", script(desk, *map(dict, steps)))
    session = cli("sessions", "list", "--json").document["data"][0]["id"]

    listed = cli("calls", "list", "--session", session).out.splitlines()[1:]
    forms = cli("calls", "list", "--session", session, "--json").document["data"]

    assert [line.split("\t")[:2] for line in listed] == [
        ["c1", "denied"],
        ["c2", "error"],
        ["c3", "finished"],
    ]
    # The wire knows four states; that one never ran is told by its missing start.
    assert [(each["state"], each["started_at"] is None) for each in forms] == [
        ("finished", True),
        ("finished", True),
        ("finished", False),
    ]


def test_without_unknown_calls_the_list_is_empty(cli: Cli, chatted: str) -> None:
    plain, every = cli("calls", "list"), cli("calls", "list", "--session", chatted)

    assert (plain.code, plain.out, plain.err) == (0, "", "No calls with an unknown outcome.\n")
    assert (every.out, every.err) == ("", "No calls.\n")


def test_an_unknown_call_is_listed_and_shown(cli: Cli, cut_off: str) -> None:
    heading, row = cli("calls", "list").out.splitlines()
    (form,) = cli("calls", "list", "--unknown", "--json").document["data"]
    shown = cli("calls", "show", "c1")
    whole = cli("calls", "show", "c1", "--session", cut_off, "--json").document

    assert heading.split("\t") == ["ID", "STATE", "STARTED", "SESSION", "CALL"]
    cells = row.split("\t")
    assert (cells[0], cells[1], cells[3], cells[4]) == (
        "c1",
        "unknown",
        cut_off,
        "run_command sh work.sh",
    )
    assert (form["state"], form["settled"], form["effect"]) == ("unknown", None, "unsafe")
    assert 'arguments  {"command":"sh","args":["work.sh"]}\n' in shown.out
    assert "result     unknown (unknown): " in shown.out
    assert whole == form | {
        "status": "unknown",
        "result": None,
        "error": whole["error"],
    }


def test_a_retry_runs_the_command_again_and_prints_its_result(cli: Cli, cut_off: str) -> None:
    ran = cli("calls", "settle", "c1", "--retry", "--yes-to", "run_command")

    result = json.loads(ran.out)
    assert (ran.code, result["exit_code"], result["stdout"]) == (0, 0, "done\n")
    assert "run_command sh work.sh: ok, exit code 0\n" in ran.err
    assert cli("calls", "list", "--json").document["data"] == []
    states = cli("calls", "list", "--session", cut_off, "--json").document["data"]
    assert [each["settled"] for each in states] == ["retried", None]
    assert states[0]["idempotency_key"] == states[1]["idempotency_key"]


def test_a_retry_in_json_is_one_document(cli: Cli, cut_off: str) -> None:
    ran = cli("calls", "settle", "c1", "--retry", "--yes-to", "run_command", "--json")
    again = cli("calls", "settle", "c1", "--session", cut_off, "--retry", "--json", "--yes-to",
                "run_command")  # fmt: skip

    form = ran.document
    assert (ran.code, form["id"], form["settled"]) == (0, "c1", "retried")
    assert form["retry"]["id"].startswith("retry_")
    assert (form["retry"]["status"], form["retry"]["result"]["stdout"]) == ("ok", "done\n")
    # Heard again: it is not run a third time.
    assert again.document == form


def test_where_nobody_can_be_asked_a_retry_changes_nothing(cli: Cli, cut_off: str) -> None:
    ran = cli("calls", "settle", "c1", "--retry", "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (3, "", "grant_exceeded")
    assert "--yes-to run_command" in ran.error["message"]
    (form,) = cli("calls", "list", "--json").document["data"]
    assert (form["state"], form["settled"]) == ("unknown", None)


def test_a_retry_of_a_function_waits_for_the_program_that_has_it(
    cli: Cli, home: Path, desk: Path
) -> None:
    model = script(desk, *map(dict, (asks(call("pay", call_id="c1", order="A1")), says("paid"))))
    config = Config(home=home, default_model=model)
    outside = Environment(is_attended=False, yes_to=frozenset({"pay"}))
    paid = []

    @tool(effect="unsafe")
    async def pay(order: str) -> str:
        """Pay an order."""
        paid.append(order)
        if len(paid) == 1:
            await asyncio.Event().wait()
        return "receipt"

    async def left() -> SessionId:
        async with open_holdfast(config=config, outside=outside, tools=[pay]) as house:
            session = await house.open(tools=[pay])
            await house.send(session.id, "go")
            await news_until(house, session.id, ToolStarted)
        return session.id

    async def taken_up(session: SessionId) -> None:
        async with open_holdfast(config=config, outside=outside, tools=[pay]) as house:
            await played(house, session)

    session = asyncio.run(left())
    cli("chat", "--resume", session)
    unattended = cli("calls", "settle", "c1", "--retry")
    retried = cli("calls", "settle", "c1", "--retry", "--yes-to", "pay")
    asyncio.run(taken_up(session))

    assert (unattended.code, retried.code) == (3, 5)
    assert "A function is run again by the program that has it." in unattended.err
    assert "waits for a process that has the tool pay. It stays open" in retried.err
    assert paid == ["A1", "A1"]


@pytest.mark.slow
def test_at_a_terminal_a_retry_is_asked_about(cli: Cli, home: Path, cut_off: str) -> None:
    with at_terminal(home, "calls", "settle", "c1", "--retry") as terminal:
        terminal.wait_for("run_command asks for approval (process):")
        terminal.wait_for("Allow?")
        terminal.type("n too late\r")
        code = terminal.ended()

    assert code == 3
    assert "denied (rejected)" in terminal.plain


@pytest.mark.parametrize(
    ("flags", "settled", "told"),
    [
        (["--skip"], "skipped", "it is treated as not executed"),
        (
            ["--done", "all good"],
            "marked_done",
            'it is treated as executed, with the result "all good"',
        ),
        (
            ["--done", '{"exit_code":0}', "--note", "I looked"],
            "marked_done",
            'it is treated as executed, with the result {"exit_code":0}. Note: I looked',
        ),
    ],
)
def test_a_call_is_settled_by_word_and_the_record_says_so(
    cli: Cli, cut_off: str, flags: list[str], settled: str, told: str
) -> None:
    ran = cli("calls", "settle", "c1", *flags, "--json")

    assert (ran.code, ran.document["state"], ran.document["settled"]) == (0, "unknown", settled)
    assert told in cli("sessions", "messages", cut_off).out
    assert cli("calls", "list", "--json").document["data"] == []


@each_case(
    "flags", [[], ["--retry", "--skip"], ["--skip", "--done", "x"], ["--skip", "--note", "x" * 501]]
)
def test_a_settlement_has_to_mean_one_thing(cli: Cli, cut_off: str, flags: list[str]) -> None:
    ran = cli("calls", "settle", "c1", *flags, "--json")

    assert (ran.code, ran.out) == (2, "")
    assert len(cli("calls", "list", "--json").document["data"]) == 1


def test_a_call_is_found_by_its_session_where_its_id_is_not_enough(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    sessions = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        sessions.append(cut(home, tmp_path / name, cli))

    several = cli("calls", "settle", "c1", "--skip", "--json")
    page = cli("calls", "list", "--limit", "1", "--json").document
    rest = cli("calls", "list", "--cursor", page["next_cursor"], "--json").document
    one = cli("calls", "settle", "c1", "--session", sessions[0], "--skip")
    other = cli("calls", "settle", "c1", "--skip")
    none = cli("calls", "settle", "c1", "--skip", "--json")
    lost = cli("calls", "list", "--cursor", "elsewhere", "--json")
    settled = cli("calls", "list", "--state", "settled", "--json").document["data"]
    unclear = cli("calls", "list", "--unknown", "--state", "settled", "--json")

    assert (several.code, several.error["error"]) == (2, "invalid_id")
    assert [each["session_id"] for each in page["data"] + rest["data"]] == sessions
    assert (one.code, one.out, other.code) == (0, "Call c1 is skipped.\n", 0)
    assert (none.code, none.error["error"]) == (4, "call_not_found")
    assert (lost.code, lost.error["error"]) == (2, "invalid_cursor")
    assert [each["session_id"] for each in settled] == sessions
    assert (unclear.code, unclear.error["error"]) == (2, "invalid_input")


def test_only_an_unknown_outcome_can_be_settled(cli: Cli, cut_off: str) -> None:
    cli("calls", "settle", "c1", "--skip")

    ran = cli("calls", "settle", "c1", "--session", cut_off, "--done", "1", "--json")

    assert (ran.code, ran.error["error"]) == (5, "call_not_open")


REFUND = {
    "name": "refund",
    "description": "Refund an order.",
    "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
}


@pytest.fixture
def requested(home: Path, desk: Path) -> str:
    """Leave a call that waits for a client; return its session."""

    async def left() -> str:
        steps = asks(call("refund", call_id="c1", order="17")), says("done")
        config = Config(home=home, default_model=script(desk, *map(dict, steps)))
        async with open_holdfast(config=config) as house:
            agent = await house.agents.create(house.owner, {"name": "Clerk", "tools": [REFUND]})
            session = await house.open(agent.slug)
            await house.send(session.id, "go")
            await news_until(house, session.id, ToolRequested)
        return str(session.id)

    return asyncio.run(left())


def test_a_requested_call_is_listed_and_answered(cli: Cli, requested: str) -> None:
    heading, row = cli("calls", "list", "--state", "requested").out.splitlines()
    shown = cli("calls", "show", "c1", "--session", requested).out
    answered = cli("calls", "answer", "c1", "--result", '{"refunded": true}', "--json")
    again = cli("calls", "answer", "c1", "--session", requested, "--result", '{"refunded": true}')
    other = cli("calls", "answer", "c1", "--session", requested, "--error", "no")

    assert heading.split("\t")[:2] == ["ID", "STATE"]
    assert row.split("\t")[:2] == ["c1", "requested"]
    assert "answer by" in shown
    assert (answered.code, answered.document["state"]) == (0, "finished")
    assert (again.code, again.out) == (0, "Call c1 is finished.\n")
    assert other.code != 0
    assert "no other answer can be given" in other.err
    # The model without a network repeats what its tool has returned.
    assert cli("chat", "--resume", requested).out == '{"refunded":true}\n'


@each_case("given", [(), ("--result", "1", "--error", "no"), ("--unknown", "--error", "no")])
def test_an_answer_says_one_thing(cli: Cli, requested: str, given: tuple[str, ...]) -> None:
    refused = cli("calls", "answer", "c1", *given)
    assert refused.code == 2
    assert "Choose one of --result JSON, --error TEXT and --unknown." in refused.err
