"""Help: every command has some, and the page about the command line shows it as it is."""

from tests.cli.help_pages import PAGE, command_paths, help_of, rendered, shown_paths
from tests.marks import each_case

BLACK_BOX = {
    "chat", "chat-list", "chat-resume", "serve", "doctor", "config", "backup", "restore",
    "sessions list", "sessions show", "sessions messages", "sessions events", "sessions resume",
    "sessions interrupt", "sessions fork", "sessions close", "sessions delete", "sessions verify",
    "sessions compact", "approvals list", "approvals answer", "calls list", "calls settle",
    "agents list", "agents show", "agents create", "agents edit", "agents archive",
    "repos list", "repos add", "repos remove",
    "history submit", "history query", "timeline", "import cursor-memory",
    "migrate status", "migrate up", "migrate down",
    "token list", "token create", "token revoke",
}  # fmt: skip


def test_the_commands_outsiders_rely_on_are_there() -> None:
    assert {" ".join(path) for path in command_paths()} >= BLACK_BOX


@each_case("path", command_paths(), ids=" ".join)
def test_every_command_says_what_it_does_and_what_each_option_means(path: tuple[str, ...]) -> None:
    told = help_of(path)

    usage, _, rest = told.partition("\n\n")
    summary = rest.strip().splitlines()[0]
    assert usage.startswith(f"Usage: holdfast {' '.join(path)}".rstrip())
    assert summary.endswith(".")
    assert max(map(len, told.splitlines())) <= 80
    for line in told.splitlines():
        # An option without a sentence would stand alone on its line, and on the next one.
        assert not line.strip().startswith("--") or len(line.split()) > 1


@each_case("path", command_paths(), ids=" ".join)
def test_no_help_has_marks_that_are_not_to_be_typed(path: tuple[str, ...]) -> None:
    told = help_of(path)

    assert not set(told) & set("{}")
    assert "<list[" not in told


@each_case(
    "path", [path for path in command_paths() if path[-1:] == ("list",) or path == ("chat-list",)]
)
def test_every_listing_takes_a_limit_and_a_cursor(path: tuple[str, ...]) -> None:
    told = help_of(path)

    assert "--limit N" in told
    assert "--cursor CURSOR" in told


def test_the_page_shows_the_help_of_every_command_as_it_is() -> None:
    page = PAGE.read_text("utf-8")

    assert sorted(shown_paths(page)) == sorted(command_paths())
    assert rendered(page) == page, "run `python -m tests.cli.help_pages`"
