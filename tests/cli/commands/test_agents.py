"""`holdfast agents …`."""

import asyncio
from pathlib import Path

from holdfast import open_holdfast
from tests.cli.conftest import Cli
from tests.marks import demands


def test_an_agent_is_created_and_shown(cli: Cli) -> None:
    created = cli(
        "agents", "create", "--name", "Code helper", "--system-prompt", "Be terse.",
        "--model", "offline:holdfast", "--model", "openai:gpt", "--tag", "a", "--tag", "b",
        "--description", "Helps.", "--json",
    )  # fmt: skip
    shown = cli("agents", "show", "code-helper", "--json")
    plain = cli("agents", "show", created.document["id"])

    assert shown.document == created.document
    form = created.document
    assert (form["slug"], form["name"], form["tags"]) == ("code-helper", "Code helper", ["a", "b"])
    assert (form["system_prompt"], form["description"]) == ("Be terse.", "Helps.")
    assert len(form["fallback_model_ids"]) == 1
    assert "models         offline:holdfast, openai:gpt\n" in plain.out


@demands("S0-440")
def test_schemas_are_read_from_files_and_applied(cli: Cli, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "required": ["sum"]}')
    created = cli(
        "agents", "create", "--name", "Adder", "--input-schema", str(schema),
        "--output-schema", str(schema), "--json",
    )  # fmt: skip
    refused = cli("chat", "1+1", "--agent", "adder")
    edited = cli("agents", "edit", "adder", "--input-schema", "", "--json")
    failed = cli("chat", "1+1", "--agent", "adder")
    (tmp_path / "list.json").write_text("[]")
    wrong = [
        cli("agents", "edit", "adder", "--output-schema", str(tmp_path / name))
        for name in ("list.json", "missing.json")
    ]

    assert created.document["input_schema"] == {"type": "object", "required": ["sum"]}
    assert (refused.code, failed.code) == (2, 2)
    assert "does not match the input_schema" in refused.err
    assert "does not match the output schema" in failed.err
    assert "input_schema" not in edited.document
    assert edited.document["output_schema"] == created.document["output_schema"]
    assert [each.code for each in wrong] == [2, 2]
    assert "schemas" in cli("agents", "show", "adder").out


def test_a_created_agent_answers(cli: Cli) -> None:
    told = cli("agents", "create", "--name", "Night watch", "--slug", "watch").out

    assert told == "Created agent watch; chat with it: `holdfast chat --agent watch`.\n"
    assert cli("chat", "What is 1+1?", "--agent", "watch").out.startswith("1+1 = 2")


def test_a_name_without_letters_for_a_slug_gets_one_of_its_own_and_is_told(cli: Cli) -> None:
    one, other = (cli("agents", "create", "--name", name) for name in ("熊", "熊猫"))

    told = (
        "The name has no letters to build a slug from; set one with --slug "
        "(`agents edit` takes it too).\n"
    )
    assert (one.err, other.err) == (told, told)
    assert [each.out.split()[2] for each in (one, other)] == ["agent;", "agent-2;"]


def test_agents_are_listed_newest_first_page_by_page(cli: Cli) -> None:
    for name in ("one", "two", "three"):
        cli("agents", "create", "--name", name, "--tag", "odd" if name != "two" else "even")

    first = cli("agents", "list", "--limit", "2", "--json").document
    second = cli("agents", "list", "--limit", "2", "--cursor", first["next_cursor"], "--json")
    odd = cli("agents", "list", "--tag", "odd", "--json").document
    found = cli("agents", "list", "--query", "TW", "--json").document
    plain = cli("agents", "list")

    assert [each["slug"] for each in first["data"]] == ["three", "two"]
    assert [each["slug"] for each in second.document["data"]] == ["one"]
    assert [each["slug"] for each in odd["data"]] == ["three", "one"]
    assert [each["slug"] for each in found["data"]] == ["two"]
    assert plain.out.splitlines()[0] == "SLUG\tSTATUS\tUPDATED\tNAME"


def test_no_agents_is_no_error(cli: Cli) -> None:
    ran = cli("agents", "list")

    assert (ran.code, ran.out) == (0, "")
    assert "holdfast agents create" in ran.err


def test_an_agent_is_changed_field_by_field(cli: Cli) -> None:
    cli("agents", "create", "--name", "one", "--description", "first", "--tag", "a")

    edited = cli("agents", "edit", "one", "--name", "Uno", "--slug", "uno", "--json").document
    cleared = cli("agents", "edit", "uno", "--description", "", "--json").document
    nothing = cli("agents", "edit", "uno", "--json")

    assert (edited["name"], edited["slug"], edited["tags"]) == ("Uno", "uno", ["a"])
    assert (edited["description"], cleared["description"]) == ("first", None)
    assert (nothing.code, nothing.error["error"]) == (2, "invalid_input")


def test_an_archived_agent_opens_no_session_until_it_is_brought_back(cli: Cli) -> None:
    cli("agents", "create", "--name", "one")

    archived = cli("agents", "archive", "one")
    refused = cli("chat", "hello", "--agent", "one", "--json")
    listed = cli("agents", "list", "--status", "archived", "--json").document["data"]
    everyone = cli("agents", "list", "--status", "all", "--json").document["data"]
    active = cli("agents", "list", "--json").document["data"]
    cli("agents", "edit", "one", "--status", "active")

    assert archived.out == ("Archived agent one; `agents edit --status active` restores it.\n")
    assert (refused.code, refused.out, refused.error["error"]) == (5, "", "agent_archived")
    assert ([each["slug"] for each in listed], active) == (["one"], [])
    assert everyone == listed
    assert cli("chat", "hello", "--agent", "one").code == 0


def test_an_archived_agent_without_sessions_can_be_removed_for_good(cli: Cli) -> None:
    made = cli("agents", "create", "--name", "one", "--json").document
    used = cli("agents", "create", "--name", "two")
    cli("chat", "hello", "--agent", "two")

    active = cli("agents", "purge", "one", "--json")
    cli("agents", "archive", "one")
    cli("agents", "archive", "two")
    referred = cli("agents", "purge", "two", "--json")
    purged = cli("agents", "purge", "one", "--json")
    again = cli("agents", "purge", "one", "--json")
    left = cli("agents", "list", "--status", "all", "--json").document["data"]
    afar = cli("--server", "http://127.0.0.1:9", "agents", "purge", "two", "--json")

    assert used.code == 0
    assert (active.code, active.error["error"]) == (5, "agent_in_use")
    assert (referred.code, referred.error["error"]) == (5, "agent_in_use")
    assert (purged.code, purged.document) == (0, {"purged": made["id"]})
    assert (again.code, again.error["error"]) == (4, "agent_not_found")
    assert [each["slug"] for each in left] == ["two"]
    assert (afar.code, afar.error["error"]) == (2, "invalid_input")


def test_wrong_wishes_are_refused(cli: Cli) -> None:
    cli("agents", "create", "--name", "one")

    assert cli("agents", "create", "--name", "two", "--slug", "one").code == 5
    assert cli("agents", "create", "--name", "x", "--slug", "a b").code == 2
    assert cli("agents", "create").code == 2
    assert cli("agents", "create", "--name", "x", "--model", "nonsense").code == 2
    assert cli("agents", "edit", "one", "--model", "", "--model", "offline:holdfast").code == 2
    assert cli("agents", "show", "nobody").code == 4
    assert cli("agents", "archive", "nobody").code == 4
    assert cli("agents", "list", "--limit", "0").code == 2


@demands("S2-020h", "S2-020i")
def test_settings_of_the_model_are_named_and_changed(cli: Cli) -> None:
    given = ("--temperature", "0.2", "--max-tokens", "500", "--model", "offline:holdfast")
    made = cli("agents", "create", "--name", "One", *given, "--json").document
    warmer = cli("agents", "edit", "one", "--temperature", "0", "--json").document
    shown = cli("agents", "show", "one").out
    wrong = cli("agents", "create", "--name", "Two", "--temperature", "3", "--json")
    program = cli("agents", "create", "--name", "Two", "--command", "x", "--max-tokens", "5")

    assert (made["temperature"], made["max_tokens"]) == (0.2, 500)
    assert (warmer["temperature"], warmer["max_tokens"]) == (0.0, 500)
    assert warmer["default_model_id"] == made["default_model_id"] is not None
    assert "max tokens" in shown
    assert (wrong.code, wrong.error["details"]["fields"]) == (2, ["temperature"])
    assert program.code == 2
    assert "require a model" in program.err


def test_tools_are_named_changed_and_taken_away(cli: Cli) -> None:
    made = cli("agents", "create", "--name", "One", "--tools", "read_file, find_text", "--json")
    shown = cli("agents", "show", "one").out
    less = cli("agents", "edit", "one", "--tools", "find_text", "--json")
    none = cli("agents", "edit", "one", "--tools", "")
    odd = cli("agents", "edit", "one", "--tools", "read_fil")
    starts_none = cli("agents", "create", "--name", "Two", "--tools", "invoke_agent")

    assert "read_file, find_text" in shown
    assert made.document["tools"] == ["read_file", "find_text"]
    assert less.document["tools"] == ["find_text"]
    assert none.code == 0
    assert odd.code == 0
    assert "invoke_agent can start no agent: name those that it may start, as " in starts_none.err
    assert "There is no tool read_fil (did you mean read_file" in odd.err
    assert "read_fil" in cli("agents", "show", "one").out


def test_an_agent_whose_tool_there_is_not_says_how_it_is_put_right(cli: Cli, home: Path) -> None:
    asyncio.run(make_odd(home))

    refused = cli("chat", "--agent", "odd", "hi", "--json")
    mended = cli("agents", "edit", "odd", "--tools", "read_file")

    assert (refused.code, refused.error["error"]) == (2, "unknown_tool")
    assert "`holdfast agents edit odd --tools A,B`" in refused.error["message"]
    assert mended.code == 0
    assert cli("chat", "--agent", "odd", "hi").code == 0


async def make_odd(home: Path) -> None:
    """Make an agent with a tool of whose name nobody knows more."""
    async with open_holdfast(home) as house:
        await house.agents.create(house.owner, {"name": "Odd", "tools": ["telescope"]})
