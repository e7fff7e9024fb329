"""Files that come along with a message."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.cli.chat.repl import LARGEST, attachable_folder, with_files
from holdfast.config import Config
from holdfast.domain.errors import Code, Denied, HoldfastError, Invalid
from holdfast.domain.sessions import Session
from tests.builders import a_context, a_session
from tests.marks import each_case


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """Return a session in a folder with a few files."""
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "notes.txt").write_text("hold fast")
    (desk / "two words.md").write_text("```\ncode\n```\n")
    (desk / "empty").touch()
    (desk / ".env").write_text("KEY=value")
    (desk / "picture").write_bytes(b"\x00\x01")
    (desk / "large").write_bytes(b"x" * (LARGEST + 1))
    (tmp_path / "outside.txt").write_text("no")
    return a_session(context=a_context(working_dir=str(desk)))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return a configuration whose home is elsewhere."""
    return Config(home=tmp_path / "home")


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("mail a@b.example, @nobody", "mail a@b.example, @nobody"),
        ("see @notes.txt.", "see @notes.txt.\n\nnotes.txt:\n```\nhold fast\n```"),
        ("@empty @empty", "@empty @empty\n\nempty:\n```\n```"),
        (
            '@"two words.md"',
            '@"two words.md"\n\ntwo words.md:\n````\n```\ncode\n```\n````',
        ),
    ],
)
def test_files_that_are_named_come_between_fences(
    session: Session, config: Config, text: str, whole: str
) -> None:
    assert with_files(text, session, config, is_remote=False) == whole


@each_case(
    ("text", "error"),
    [
        ("@../outside.txt", Denied(Code.FORBIDDEN, "../outside.txt is outside the")),
        ("@.env", Denied(Code.FORBIDDEN, ".env")),
        ("@picture", Invalid(Code.INVALID_INPUT, "picture is not a text file.")),
        (
            "@large",
            Invalid(Code.TOO_LARGE, "large has 131073 bytes; at most 131072 can be attached"),
        ),
    ],
)
def test_what_the_session_could_not_read_is_refused(
    session: Session, config: Config, text: str, error: HoldfastError
) -> None:
    with pytest.raises(type(error)) as caught:
        with_files(text, session, config, is_remote=False)

    assert caught.value.code is error.code
    assert caught.value.message.startswith(error.message)
    assert caught.value.message.endswith("Nothing was sent.")


def test_for_a_server_files_are_those_of_this_machine(
    session: Session, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(session.context.working_dir)
    elsewhere = replace(session, context=a_context(working_dir="/nowhere/at/all"))

    assert attachable_folder(elsewhere, is_remote=True) == session.context.working_dir
    assert "hold fast" in with_files("@notes.txt", elsewhere, config, is_remote=True)
