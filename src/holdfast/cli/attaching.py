"""`@path` in what a person types: the file comes with the message, as text between fences.

By the rules that bind `read_file`: what the session does not reach is not attached either.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.domain.errors import Code, Denied, Invalid
from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Grant

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.domain.sessions import Session
    from holdfast.ports import ToolWorkspace
    from holdfast.tools.files.access import FileAccess

LARGEST: Final = 128 << 10
_NAMED: Final = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
# What ends a sentence is seldom the end of a name.
_ENDINGS: Final = ".,;:!?)]}'\""
_FENCE: Final = re.compile(r"`{3,}")


def attachable_folder(session: "Session", *, is_remote: bool) -> str:
    """Return where names are looked up: the session's folder, or here if that is elsewhere."""
    return os.getcwd() if is_remote else session.context.working_dir


def with_files(text: str, session: "Session", config: "Config", *, is_remote: bool) -> str:
    """Return a message with the files that it names; a name that there is not is just a word."""
    folder = attachable_folder(session, is_remote=is_remote)
    found = list(dict.fromkeys(_names(text, folder)))
    if not found:
        return text
    grant = Grant(fs=config.chat.fs_scope) if is_remote else session.grant
    place = _place(folder, (grant, Grant(fs=config.chat.fs_scope)))
    keeper = _keeper(config)
    return "\n\n".join([text, *(_fenced(name, _read(keeper, place, name)) for name in found)])


def _names(text: str, folder: str) -> Iterator[str]:
    for quoted, word in _NAMED.findall(text):
        for name in (quoted,) if quoted else (word, word.rstrip(_ENDINGS)):
            # Only whether it is there: what may be read of it is judged when it is opened.
            if name and "\x00" not in name and Path(folder, name).is_file():
                yield name
                break


def _fenced(name: str, content: str) -> str:
    longest = max(map(len, _FENCE.findall(content)), default=2)
    fence = "`" * (longest + 1)
    end = "" if content.endswith("\n") or not content else "\n"
    return f"{name}:\n{fence}\n{content}{end}{fence}"


def _read(keeper: "FileAccess", place: "ToolWorkspace", name: str) -> str:
    from holdfast.tools.files.access import read_whole
    from holdfast.tools.files.read import is_binary
    from holdfast.tools.tool import ToolFailure

    try:
        scope = keeper.scope(place)
        with keeper.resolve_path(scope, name) as spot, keeper.file(scope, spot) as descriptor:
            content = read_whole(descriptor, name)
    except ToolFailure as trouble:
        told = f"{trouble.message} Nothing was sent."
        if trouble.status is ResultStatus.DENIED:
            raise Denied(Code.FORBIDDEN, told) from None
        raise Invalid(Code.INVALID_INPUT, told) from None
    if len(content) > LARGEST:
        raise Invalid(
            Code.TOO_LARGE,
            f"{name} has {len(content)} bytes, and {LARGEST} can be attached; name it without the "
            "@ and let the agent read what it needs. Nothing was sent.",
        )
    if is_binary(content):
        raise Invalid(Code.INVALID_INPUT, f"{name} is no text file. Nothing was sent.")
    return content.decode("utf-8", "replace")


def _keeper(config: "Config") -> "FileAccess":
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


def _place(folder: str, grants: tuple[Grant, ...]) -> "ToolWorkspace":
    from holdfast.ports import ToolWorkspace

    return ToolWorkspace(
        session="",
        working_dir=folder,
        scratch=folder,
        grants=grants,
        tools=frozenset(),
        # Nothing is changed, so nothing has to be kept.
        shelf=cast(Any, None),
    )
