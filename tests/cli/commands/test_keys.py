"""Keys at the terminal: typed in secret, kept in the keychain, shown by their last characters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.processes import at_terminal
from tests.keychains import Known, using
from tests.marks import each_case

KEY = "sk-1234567890abcd"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Known]:
    """Be on a desktop with a keychain, and have no key in the environment."""
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    backend = Known()
    with using(backend):
        yield backend


def test_a_key_is_piped_in_listed_and_removed(cli: Cli, backend: Known) -> None:
    kept = cli("key", "set", "openai", stdin=f"{KEY}\n")
    listed = cli("key", "list")
    gone = cli("key", "remove", "openai:default")

    assert (kept.code, kept.out, kept.err) == (
        0,
        "Stored the key openai:default in the keychain.\n",
        "",
    )
    assert listed.out == "KEY\tFROM\tENDS WITH\nopenai:default\tkeychain\tabcd\n"
    assert gone.out == "Removed the key openai:default from the keychain.\n"
    assert list(backend.entries) == [("holdfast", "accounts")]


def test_for_programs_everything_is_json(
    cli: Cli, backend: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "short")

    assert cli("key", "set", "mcp:notes", "--json", stdin=KEY).document == {"account": "mcp:notes"}
    assert cli("key", "list", "--json").document == {
        "data": [
            {"account": "mcp:notes", "origin": "keychain", "ending": "abcd"},
            {"account": "openai:default", "origin": "OPENAI_API_KEY", "ending": ""},
        ],
        "next_cursor": None,
    }
    assert cli("key", "remove", "mcp:notes", "--json").document == {"account": "mcp:notes"}


def test_a_list_of_keys_has_pages(cli: Cli, backend: Known) -> None:
    for name in ("google", "azure", "groq"):
        cli("key", "set", name, stdin=KEY)

    first = cli("key", "list", "--json", "--limit", "2").document
    second = cli("key", "list", "--json", "--cursor", first["next_cursor"]).document

    assert [each["account"] for each in first["data"]] == ["azure:default", "google:default"]
    assert [each["account"] for each in second["data"]] == ["groq:default"]
    assert second["next_cursor"] is None


def test_without_keys_the_list_says_how_to_get_one(cli: Cli, backend: Known) -> None:
    ran = cli("key", "list")

    assert (ran.out, ran.err) == ("", "No keys; add one with `holdfast key set PROVIDER`.\n")


def test_a_short_key_is_kept_with_a_warning(cli: Cli, backend: Known) -> None:
    ran = cli("key", "set", "openai", stdin="short")

    assert ran.code == 0
    assert ran.err == "The key has fewer than 8 characters, too few to mask it in texts.\n"
    assert cli("key", "list").out.endswith("openai:default\tkeychain\t-\n")


@each_case(
    ("arguments", "stdin", "refusal"),
    [
        (("set", "OpenAI"), KEY, (2, "invalid_input")),
        (("set", "store:x"), KEY, (2, "invalid_input")),
        (("set", "opnai:work"), KEY, (2, "invalid_input")),
        (("set", "openai"), "", (2, "invalid_input")),
        (("set", "openai"), b"\xff\xfe", (2, "invalid_input")),
        (("set", "openai"), "x" * 20_000, (2, "invalid_input")),
        (("set", "openai", KEY), "", (2, "invalid_input")),
        (("remove", "openai"), "", (4, "key_not_found")),
    ],
)
def test_what_cannot_be_done_is_refused_without_the_key(
    cli: Cli,
    backend: Known,
    arguments: tuple[str, ...],
    stdin: str | bytes,
    refusal: tuple[int, str],
) -> None:
    ran = cli("key", *arguments, "--json", stdin=stdin)

    assert (ran.code, ran.error["error"]) == refusal
    assert KEY not in ran.err or KEY in arguments
    assert backend.entries == {}


def test_a_key_that_no_provider_uses_is_refused_with_those_that_exist(
    cli: Cli, backend: Known
) -> None:
    ran = cli("key", "set", "opnai", stdin=KEY)

    assert (ran.code, backend.entries) == (2, {})
    assert "No provider uses a key of that name (did you mean openai?); keys are for " in ran.err
    assert "zai, mcp:NAME and host:NAME." in ran.err


def test_without_a_keychain_a_key_is_not_kept_in_a_file(cli_without_home: Cli, home: Path) -> None:
    ran = cli_without_home("key", "set", "openai", "--json", stdin=KEY)

    assert (ran.code, ran.error["error"]) == (7, "keychain_unavailable")
    assert not home.exists()


def test_at_a_terminal_a_key_is_typed_without_an_echo(home: Path) -> None:
    with at_terminal(home, "key", "set", "openai") as terminal:
        terminal.wait_for("Key for openai:default: ")
        terminal.type(f"{KEY}\n")
        terminal.wait_for("No keychain can store the key")

        assert terminal.ended() == 7
        assert KEY not in terminal.shown


def test_leaving_the_prompt_leaves_the_command(home: Path) -> None:
    with at_terminal(home, "key", "set", "openai") as terminal:
        terminal.wait_for("Key for openai:default: ")
        terminal.type("\x03")

        assert terminal.ended() == 130
