"""The global flags: anywhere on the line, and what they lead to."""

from pathlib import Path

from holdfast.cli.options import GlobalOptions, hoist_global_flags
from tests.cli.conftest import Cli
from tests.marks import each_case


@each_case(
    ("arguments", "moved"),
    [
        (["chat", "hello", "--json"], ["--json", "chat", "hello"]),
        (["chat", "--config", "a.toml", "-q"], ["--config", "a.toml", "-q", "chat"]),
        (["chat", "--color=never", "x"], ["--color=never", "chat", "x"]),
        (["chat", "-v", "-vv", "--verbose"], ["-v", "-vv", "--verbose", "chat"]),
        (["chat", "--", "--json", "-q"], ["chat", "--", "--json", "-q"]),
        (["chat", "--json", "--", "--json"], ["--json", "chat", "--", "--json"]),
        (["chat", "--config"], ["--config", "chat"]),
        ([], []),
    ],
)
def test_global_flags_may_stand_anywhere_but_behind_two_dashes(
    arguments: list[str], moved: list[str]
) -> None:
    assert hoist_global_flags(arguments) == moved


@each_case(
    ("settings", "level"),
    [
        (GlobalOptions(), "warning"),
        (GlobalOptions(quiet=True), "error"),
        (GlobalOptions(verbose=1), "info"),
        (GlobalOptions(verbose=5, quiet=True), "debug"),
    ],
)
def test_flags_say_how_much_is_logged(settings: GlobalOptions, level: str) -> None:
    assert settings.log_level("warning") == level


@each_case("place", [0, 1, 2])
def test_json_may_be_asked_for_anywhere(cli: Cli, place: int) -> None:
    words = ["sessions", "list"]
    words.insert(place, "--json")

    assert cli(*words).document == {"data": [], "next_cursor": None}


def test_a_configuration_file_can_be_named(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text('[chat]\ndefault_model = "scripted:/nowhere.yaml"\n')

    ran = cli("chat", "hello", "--config", str(file))

    assert ran.code == 2
    assert "/nowhere.yaml" in ran.err


def test_a_configuration_file_that_is_missing_is_invalid(cli: Cli) -> None:
    ran = cli("--config", "/nowhere.toml", "doctor", "--json")

    assert (ran.code, ran.error["error"]) == (2, "config_invalid")


def test_an_unknown_key_is_invalid_and_names_the_nearest(cli: Cli, home: Path) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text('[chat]\ndefault_modell = "a:b"\n')

    ran = cli("sessions", "list")

    assert ran.code == 2
    assert "did you mean chat.default_model?" in ran.err


def test_a_wish_for_colours_must_be_one_of_three(cli: Cli) -> None:
    ran = cli("sessions", "list", "--color", "purple")

    assert ran.code == 2
    assert "holdfast --help" in ran.err


@each_case("wrong", [["sesions"], ["chat", "--modle", "x"], ["sessions", "show"]])
def test_what_cannot_be_understood_ends_with_two(cli: Cli, wrong: list[str]) -> None:
    plain, body = cli(*wrong), cli("--json", *wrong)

    assert (plain.code, plain.out, plain.err.count("\n")) == (2, "", 1)
    assert (body.code, body.out, body.error["error"]) == (2, "", "invalid_input")


def test_the_nearest_command_is_named(cli: Cli) -> None:
    assert "'sessions'" in cli("sesions").err


@each_case("group", [[], ["sessions"], ["agents"], ["repos"], ["migrate"]])
def test_a_group_without_its_command_shows_its_help(cli: Cli, group: list[str]) -> None:
    plain, body = cli(*group), cli("--json", *group)

    assert (plain.code, plain.out) == (2, "")
    assert "Commands:" in plain.err
    assert body.error["message"].startswith("Missing command.")
