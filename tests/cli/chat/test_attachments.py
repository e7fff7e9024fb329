"""Files that come along with a message."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.cli.chat.attachments import TEXT_LARGEST, AttachedFile, FileSources, attachable_folder
from holdfast.config import Config
from holdfast.domain.errors import Code, Denied, HoldfastError, Invalid
from holdfast.domain.sessions import Session
from tests.builders import a_context, a_session
from tests.marks import each_case

PNG = b"\x89PNG\r\n\x1a\n...."


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
    (desk / "large").write_bytes(b"x" * (TEXT_LARGEST + 1))
    (desk / "dot.png").write_bytes(PNG)
    (desk / "false.png").write_bytes(b"\x00\x01")
    (tmp_path / "outside.txt").write_text("no")
    return a_session(context=a_context(working_dir=str(desk)))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return a configuration whose home is elsewhere."""
    return Config(home=tmp_path / "home")


@each_case(
    ("text", "files"),
    [
        ("mail a@b.example, @nobody", []),
        ("see @notes.txt.", ["notes.txt:\n```\nhold fast\n```"]),
        ("@empty @empty", ["empty:\n```\n```"]),
        ('@"two words.md"', ["two words.md:\n````\n```\ncode\n```\n````"]),
    ],
)
def test_files_that_are_named_come_between_fences(
    session: Session, config: Config, text: str, files: list[str]
) -> None:
    found = FileSources(config, is_remote=False).read_named(text, session)

    assert [each.text for each in found] == files


def test_a_picture_is_attached_as_media(session: Session, config: Config) -> None:
    folder, sources = Path(session.context.working_dir), FileSources(config, is_remote=False)
    picture = AttachedFile(name="dot.png", content=PNG, mime_type="image/png")

    assert sources.read_named("Look at @dot.png!", session) == [picture]
    assert sources.read_given([folder / "dot.png"]) == [picture]
    # Named by the user in an option, so that the folder does not matter.
    assert sources.read_given([folder.parent / "outside.txt"])[0].content == b"no"
    with pytest.raises(Denied):
        sources.read_given([folder / ".env"])


def test_a_single_message_may_not_name_a_file_that_is_missing(
    session: Session, config: Config
) -> None:
    with pytest.raises(Invalid) as caught:
        FileSources(config, is_remote=False).read_named("see @nobody", session, is_strict=True)

    assert caught.value.message.startswith("There is no file nobody in ")
    assert "`holdfast chat -`. Nothing was sent." in caught.value.message


@each_case(
    ("text", "error"),
    [
        ("@../outside.txt", Denied(Code.FORBIDDEN, "../outside.txt is outside the")),
        ("@.env", Denied(Code.FORBIDDEN, ".env")),
        ("@picture", Invalid(Code.INVALID_INPUT, "picture is neither a text file nor a picture")),
        ("@false.png", Invalid(Code.INVALID_INPUT, "false.png is neither a text file nor")),
        (
            "@large",
            Invalid(Code.TOO_LARGE, "large has 131073 bytes; at most 131072 of text can"),
        ),
    ],
)
def test_what_the_session_could_not_read_is_refused(
    session: Session, config: Config, text: str, error: HoldfastError
) -> None:
    with pytest.raises(type(error)) as caught:
        FileSources(config, is_remote=False).read_named(text, session)

    assert caught.value.code is error.code
    assert caught.value.message.startswith(error.message)
    assert caught.value.message.endswith("Nothing was sent.")


def test_for_a_server_files_are_those_of_this_machine(
    session: Session, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(session.context.working_dir)
    elsewhere = replace(session, context=a_context(working_dir="/nowhere/at/all"))

    assert attachable_folder(elsewhere, is_remote=True) == session.context.working_dir
    (found,) = FileSources(config, is_remote=True).read_named("@notes.txt", elsewhere)
    assert found.content == b"hold fast"
