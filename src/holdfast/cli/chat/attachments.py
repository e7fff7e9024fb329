"""Files that a message names with `@`, or that an option attaches: as text or as media."""

import mimetypes
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from holdfast.domain.errors import Code, Denied, Invalid
from holdfast.domain.messages import MEDIA_LARGEST, MEDIA_MOST, ResultStatus, is_media_type
from holdfast.domain.tools import FsTier, Grant

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.domain.sessions import Session
    from holdfast.ports.tools import ToolWorkspace
    from holdfast.tools.files.access import FileAccess

TEXT_LARGEST: Final = 128 << 10
_NAMED: Final = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
# Punctuation at the end is rarely part of a file name.
_ENDINGS: Final = ".,;:!?)]}'\""
_FENCE: Final = re.compile(r"`{3,}")


class AttachedFile(Struct, frozen=True, kw_only=True):
    """A file of a message; without a media type its content is text."""

    name: str
    content: bytes
    mime_type: str | None = None

    @property
    def text(self) -> str:
        """Return the content as a fenced block that it cannot close itself."""
        content = self.content.decode("utf-8", "replace")
        longest = max(map(len, _FENCE.findall(content)), default=2)
        fence = "`" * (longest + 1)
        end = "" if content.endswith("\n") or not content else "\n"
        return f"{self.name}:\n{fence}\n{content}{end}{fence}"


def attachable_folder(session: "Session", *, is_remote: bool) -> str:
    """Return the folder for file names: the session's, or the current one if that is remote."""
    return os.getcwd() if is_remote else session.context.working_dir


class FileSources:
    """Reads files of this machine for messages."""

    def __init__(self, config: "Config", *, is_remote: bool) -> None:
        self._config = config
        self._is_remote = is_remote

    def read_named(
        self, text: str, session: "Session", *, is_strict: bool = False
    ) -> list[AttachedFile]:
        """Return the files that a message names, under the rules of the session's file tools.

        A name without a file is plain text, or refused if `is_strict`.
        """
        folder = attachable_folder(session, is_remote=self._is_remote)
        ceiling = Grant(fs=self._config.chat.fs_scope)
        grant = ceiling if self._is_remote else session.grant
        names = dict.fromkeys(_names(text, folder, is_strict=is_strict))
        return self._read(names, _workspace(folder, (grant, ceiling)))

    def read_given(self, paths: Iterable[Path]) -> list[AttachedFile]:
        """Return files that the user names in an option; only protected files are refused."""
        names = dict.fromkeys(str(path) for path in paths)
        return self._read(names, _workspace(os.getcwd(), (Grant(fs=FsTier.FULL),)))

    def _read(self, names: Iterable[str], workspace: "ToolWorkspace") -> list[AttachedFile]:
        access = _file_access(self._config) if names else None
        found = [_file(name, _content(access, workspace, name)) for name in names if access]
        media = [each for each in found if each.mime_type is not None]
        if len(media) > MEDIA_MOST or sum(len(each.content) for each in media) > MEDIA_LARGEST:
            raise Invalid(
                Code.MESSAGE_TOO_LARGE,
                f"A message may have at most {MEDIA_MOST} media with {MEDIA_LARGEST >> 20} MiB "
                "together. Nothing was sent.",
            )
        return found


def _names(text: str, folder: str, *, is_strict: bool) -> Iterator[str]:
    for quoted, word in _NAMED.findall(text):
        for name in (quoted,) if quoted else (word, word.rstrip(_ENDINGS)):
            # Only existence is checked here; access is checked when the file is opened.
            if name and "\x00" not in name and Path(folder, name).is_file():
                yield name
                break
        else:
            if is_strict:
                raise Invalid(
                    Code.INVALID_INPUT,
                    f"There is no file {quoted or word} in {folder}. To send @ as text, pass the "
                    "message on stdin: `holdfast chat -`. Nothing was sent.",
                )


def _file(name: str, content: bytes) -> AttachedFile:
    from holdfast.engine.attachments import matches_media_type
    from holdfast.tools.files.read import is_binary

    guessed = mimetypes.guess_type(name)[0] or ""
    is_medium = is_media_type(guessed) and guessed != "text/plain"
    if is_medium and matches_media_type(content, guessed):
        return AttachedFile(name=Path(name).name, content=content, mime_type=guessed)
    if len(content) > TEXT_LARGEST:
        raise Invalid(
            Code.TOO_LARGE,
            f"{name} has {len(content)} bytes; at most {TEXT_LARGEST} of text can be attached. "
            "Name it without the @ and let the agent read it. Nothing was sent.",
        )
    if is_binary(content):
        raise Invalid(
            Code.INVALID_INPUT,
            f"{name} is neither a text file nor a picture, sound, video or PDF. Nothing was sent.",
        )
    return AttachedFile(name=name, content=content)


def _content(access: "FileAccess", workspace: "ToolWorkspace", name: str) -> bytes:
    from holdfast.tools.files.access import read_whole
    from holdfast.tools.tool import ToolFailure

    try:
        scope = access.scope(workspace)
        with access.resolve_path(scope, name) as target, access.file(scope, target) as descriptor:
            return read_whole(descriptor, name)
    except ToolFailure as trouble:
        error_text = f"{trouble.message} Nothing was sent."
        if trouble.status is ResultStatus.DENIED:
            raise Denied(Code.FORBIDDEN, error_text) from None
        raise Invalid(Code.INVALID_INPUT, error_text) from None


def _file_access(config: "Config") -> "FileAccess":
    from holdfast.tools.files.access import FileAccess
    from holdfast.tools.files.openat import probe_kernel
    from holdfast.tools.files.tools import FileSettings

    settings = FileSettings(
        protected=(str(config.home),),
        extra_roots=tuple(map(str, config.chat.extra_roots)),
        linked_dirs=config.chat.linked_dirs,
        user_home=os.environ.get("HOME"),
    )
    return FileAccess(settings, probe_kernel())


def _workspace(folder: str, grants: tuple[Grant, ...]) -> "ToolWorkspace":
    from holdfast.ports.tools import ToolWorkspace

    return ToolWorkspace(
        session="",
        working_dir=folder,
        scratch=folder,
        grants=grants,
        tools=frozenset(),
        # Nothing is changed, so no output has to be stored.
        shelf=cast("Any", None),
    )
