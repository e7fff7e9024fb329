"""Holds the reader of our pages itself: a page that lies has to be caught."""

from pathlib import Path

import pytest

from tests.docs.blocks import NOT_RUN, Block, Command, blocks, commands, is_as_shown
from tests.docs.play import play
from tests.docs.shell import Shell
from tests.marks import each_case

PAGE = """# A page

```console
$ echo one
one
$ cat <<END
> two
> END
$ echo '> three'
> three
```

1. in a list

   ```json
   {"a": 1}
   ```
"""

CONSOLE = """$ echo one
one
$ cat <<END
> two
> END
$ echo '> three'
> three
"""


def test_blocks_are_found_with_their_lines_and_without_their_indent() -> None:
    assert list(blocks("a.md", PAGE)) == [
        Block("a.md", 4, "console", CONSOLE),
        Block("a.md", 16, "json", '{"a": 1}\n'),
    ]


def test_a_block_that_nothing_closes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.md:1 opens a block"):
        list(blocks("a.md", "```sh\nls\n"))


def test_commands_are_told_from_their_output() -> None:
    (first, _) = blocks("a.md", PAGE)

    assert list(commands(first)) == [
        Command(4, "echo one", "one"),
        Command(6, "cat <<END\ntwo\nEND", None),
        Command(9, "echo '> three'", "> three"),
    ]


@each_case(
    ("shown", "output"),
    [
        ("one", "one\n"),
        ("one …", "one and more"),
        ("…one", "the one"),
        ("one\n…\nfour", "one\ntwo\nthree\nfour\n"),
        ("…\nfour", "four"),
        ("a.b", "a.b"),
    ],
)
def test_dots_stand_for_anything(shown: str, output: str) -> None:
    assert is_as_shown(shown, output)


@each_case(
    ("shown", "output"),
    [
        ("one", "two"),
        ("one", "one\ntwo"),
        ("one …", "two"),
        ("…\nfour", "four\nfive"),
        ("a.b", "axb"),
    ],
)
def test_other_output_is_not_as_shown(shown: str, output: str) -> None:
    assert not is_as_shown(shown, output)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("console", "$ echo one\ntwo\n"),
        ("console", "$ false\n"),
        ("sh", "false\necho never\n"),
        ("python", "assert 1 == 2\n"),
    ],
)
@pytest.mark.slow
def test_a_block_that_lies_is_found(kind: str, content: str, tmp_path: Path) -> None:
    with Shell(tmp_path) as shell:
        assert len(list(play(Block("a.md", 1, kind, content), shell, tmp_path))) == 1


@pytest.mark.slow
def test_what_a_block_leaves_the_next_one_finds(tmp_path: Path) -> None:
    story = [
        Block("a.md", 1, "sh", "mkdir -p notes\nword=hold\ncat > notes/a <<'END'\nfast\nEND\n"),
        Block("a.md", 9, "console", "$ cd notes\n$ echo $word $(cat a)\nhold fast\n"),
        Block("a.md", 15, "python", "from pathlib import Path\nassert Path('a').exists()\n"),
    ]

    with Shell(tmp_path) as shell:
        assert [fault for each in story for fault in play(each, shell, tmp_path)] == []


@pytest.mark.slow
def test_a_page_sees_a_home_of_its_own_and_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    with Shell(tmp_path) as shell:
        _, output = shell.run("env; command -v holdfast")

    assert "canary" not in output
    assert f"HOLDFAST_HOME={tmp_path}/home" in output
    assert output.endswith("/bin/holdfast\n")


def test_only_the_commands_of_the_checkout_are_not_run() -> None:
    shown = ["make up", "make test", "PORT=9000 make up", "git clone https://a.example/holdfast"]
    shown += ["pip install .", "pip install 'holdfast[langgraph]'"]

    assert [each for each in shown if not NOT_RUN.fullmatch(each)] == []
    assert [each for each in ("holdfast chat", "make up; ls") if NOT_RUN.fullmatch(each)] == []
