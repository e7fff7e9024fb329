"""Holds that a command is allowed word by word, and only by every list there is."""

import time

from holdfast.domain.tools import Grant
from holdfast.tools.run_command import has_entries, is_allowed, split_entry, word_matches
from tests.marks import demands, each_case

EXACT = [
    ("git status", ("git", "status"), True),
    ("git", ("git", "push"), False),
    ("git status", ("git",), False),
    ("git status", ("git", "status", "--short"), False),
    ("git  status", ("git", "status"), True),
    ("git 'a b'", ("git", "a b"), True),
    ("git a b", ("git", "a b"), False),
    ("git 'a b'", ("git", "a", "b"), False),
    ("echo ''", ("echo", ""), True),
    ("echo", ("echo", ""), False),
    ("echo \\*", ("echo", "*"), True),
    ("echo *", ("echo", "a"), False),
    ("ls", ("LS",), False),
    ("ls", ("/bin/ls",), False),
    ("/bin/ls", ("ls",), False),
    ("/bin/ls", ("/bin/../bin/ls",), False),
    ("./run.sh", ("./run.sh",), True),
    ("./run.sh", ("run.sh",), False),
    ("echo # no comment", ("echo", "#", "no", "comment"), True),
    ("echo $HOME", ("echo", "$HOME"), True),
    ("ls; rm", ("ls;", "rm"), True),
    ("ls; rm", ("ls",), False),
    ("echo 'unfinished", ("echo", "'unfinished"), False),
    ("", (), False),
    ("ls", ("ls",), True),
    ("ls", ("ls ",), False),
    ("ls", ("ⅼs",), False),
]

GLOBS = [
    ("npm run *", ("npm", "run", "test"), True),
    ("npm run *", ("npm", "run"), False),
    ("npm run *", ("npm", "run", "test", "--watch"), False),
    ("npm run *", ("npm", "run", ""), True),
    ("npm run **", ("npm", "run"), True),
    ("npm run **", ("npm", "run", "test", "--watch"), True),
    ("npm run **", ("npm",), False),
    ("npm run **", ("npm", "exec", "test"), False),
    ("npm run test:?", ("npm", "run", "test:a"), True),
    ("npm run test:?", ("npm", "run", "test:"), False),
    ("npm run test:?", ("npm", "run", "test:ab"), False),
    ("npm run t*t", ("npm", "run", "test"), True),
    ("npm run t*t", ("npm", "run", "tests"), False),
    ("npm ** run", ("npm", "a", "run"), False),
    ("npm ** run", ("npm", "**", "run"), False),
    ("npm run a**b", ("npm", "run", "axyb"), True),
    ("*", ("rm",), False),
    ("r* -rf", ("rm", "-rf"), False),
    ("**", ("rm", "-rf", "/"), False),
    ("?", ("w",), False),
    ("npm run 'a *'", ("npm", "run", "a b c"), True),
    ("npm run [ab]", ("npm", "run", "a"), False),
    ("npm run [ab]", ("npm", "run", "[ab]"), True),
    ("npm run a.c", ("npm", "run", "abc"), False),
    ("npm run 'x", ("npm", "run", "x"), False),
    ("", (), False),
]


@demands("S0-185")
@each_case(("entry", "call", "allowed"), EXACT)
def test_an_entry_allows_the_very_same_words(
    entry: str, call: tuple[str, ...], allowed: bool
) -> None:
    assert is_allowed((Grant(commands=(entry,)),), call) is allowed


@each_case(("entry", "call", "allowed"), GLOBS)
def test_a_glob_allows_words_that_fit_it(entry: str, call: tuple[str, ...], allowed: bool) -> None:
    assert is_allowed((Grant(command_globs=(entry,)),), call) is allowed


def test_a_wildcard_means_nothing_in_an_exact_entry() -> None:
    assert not is_allowed((Grant(commands=("npm run **",)),), ("npm", "run", "test"))
    assert is_allowed((Grant(commands=("npm run **",)),), ("npm", "run", "**"))


def test_every_grant_has_to_allow_a_call() -> None:
    both = Grant(commands=("ls", "pwd"))
    glob = Grant(command_globs=("ls **",))

    assert is_allowed((both, glob), ("ls",))
    assert not is_allowed((both, glob), ("pwd",))
    assert not is_allowed((both, Grant()), ("ls",))
    assert not is_allowed((), ("ls",))


def test_a_tool_without_a_list_has_nothing_to_offer() -> None:
    assert has_entries((Grant(commands=("ls",)), Grant(command_globs=("ls *",))))
    assert not has_entries((Grant(commands=("ls",)), Grant()))
    assert not has_entries(())


@each_case(
    ("pattern", "word", "fits"),
    [
        ("", "", True),
        ("*", "", True),
        ("?", "", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-b-b-", False),
        ("*a", "aaaa", True),
        ("a?*", "a", False),
        ("a?*", "ab", True),
        ("*?", "é", True),
        ("?", "🙂", True),
        ("*", "two\nlines", True),
    ],
)
def test_a_pattern_fits_the_whole_word(pattern: str, word: str, fits: bool) -> None:
    assert word_matches(pattern, word) is fits


def test_a_hostile_pattern_takes_no_more_time_than_a_kind_one() -> None:
    start = time.perf_counter()

    assert not word_matches("*a" * 40 + "b", "a" * 20_000)

    assert time.perf_counter() - start < 2


def test_an_entry_is_split_once_as_a_shell_would() -> None:
    assert split_entry('a "b c" d\\ e \'f"g\'') == ("a", "b c", "d e", 'f"g')
