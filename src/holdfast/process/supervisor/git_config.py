"""What a git configuration shows to a command, and the paths that it names.

Named are included files, hooks, and programs that git runs. The files are parsed here and not by
git, because the survey after a command runs in a PID namespace that has ended and cannot start a
process.
"""

from __future__ import annotations

import os
import re
import shlex

from holdfast.process.supervisor.syscalls import SuppressErrors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\]\s*(.*)')
_SHOWN_ENTRY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?")
_SHOWN = {
    "core": {
        *("repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase"),
        *("precomposeunicode", "symlinks", "autocrlf", "eol", "safecrlf", "sparsecheckout"),
        *("sparsecheckoutcone", "sharedrepository", "protecthfs", "protectntfs"),
    },
    "extensions": {
        *("objectformat", "noop", "preciousobjects", "refstorage", "worktreeconfig"),
        "relativeworktrees",
    },
    "user": {"name", "email"},
    "branch": {"remote", "merge", "rebase"},
    "remote": {"url", "fetch", "pushurl"},
    "submodule": {"active", "url"},
}
# User name and optional password before the host.
_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]*@")
_BLANK = re.compile(r"(?:\s+|[#;][^\n]*)*")
_SECTION = re.compile(r'\[\s*([A-Za-z0-9-]+)[^\s"\]]*\s*(?:"(?:[^"\\\n]|\\.)*")?\s*\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(=?)")
_PIECE = re.compile(r'\\\n|\\.|"|[#;][^\n]*|\n|[^\\"#;\n]+')
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}
_PATH_KEY = re.compile(r".*path|templatedir|attributesfile")
_COMMAND_KEY = re.compile(
    r"clean|smudge|process|textconv|driver|external|editor|pager|askpass|gitproxy|fsmonitor"
    r"|difffilter|tunnel|uploadpack|receivepack|vcs|browser|smtpserver"
    r"|.*(?:helper|command|cmd|program|hook)"
)
_LARGEST = 1 << 20
# Git's own limit.
_INCLUDES_DEEPEST = 10


def harmless_settings(content: bytes) -> bytes:
    """Return the harmless entries of a git configuration, one per line.

    Entries that cannot be parsed are omitted, and so are values with a line continuation.
    """
    lines = []
    section, is_continued = "", False
    for raw in content[:_LARGEST].decode("utf-8", "surrogateescape").split("\n"):
        line = raw.strip()
        was_continued, is_continued = is_continued, raw.endswith("\\")
        if was_continued or is_continued:
            continue
        found = _SHOWN_SECTION.match(line)
        if found:
            section, line = found[1].lower(), found[3]
            lines.append(f"[{section}]" if found[2] is None else f'[{section} "{found[2]}"]')
        entry = _SHOWN_ENTRY.match(line)
        if entry and entry[1].lower() in _SHOWN.get(section, ()):
            value = _CREDENTIALS.sub("", entry[2] if entry[2] is not None else "true")
            lines.append(f"\t{entry[1]} = {value}")
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def named_paths(config: str, top: str, home: str | None) -> Iterator[str]:
    """Yield the paths that a configuration file and its includes name, absolute but not resolved.

    Relative paths start at `top`, the working tree; those of included files at the including file.
    The condition of an `includeIf` is ignored, because it may hold later.
    """
    waiting, done = [(config, 0)], set()
    while waiting:
        path, depth = waiting.pop()
        if path in done or depth > _INCLUDES_DEEPEST:
            continue
        done.add(path)
        for section, key, value in entries(_read(path)):
            if section in ("include", "includeif"):
                if key == "path":
                    included = _absolute(value, os.path.dirname(path), home)
                    waiting.append((included, depth + 1))
                    yield included
            elif _PATH_KEY.fullmatch(key):
                yield _absolute(value, top, home)
            elif section == "pager" or value.startswith("!") or _COMMAND_KEY.fullmatch(key):
                yield from _paths_in_command(value, top, home)


def entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of each entry; subsections are omitted, names in lower case."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    at, section = 0, ""
    while True:
        blank = _BLANK.match(text, at)
        at = blank.end() if blank else at
        if at >= len(text):
            return
        if found := _SECTION.match(text, at):
            section, at = found[1].lower(), found.end()
        elif found := _KEY.match(text, at):
            value, at = _value(text, found.end()) if found[2] else ("true", found.end())
            yield section, found[1].lower(), value
        else:
            # Git refuses the whole file; the rest is read because it may be corrected later.
            at = text.find("\n", at) + 1 or len(text)


def _value(text: str, at: int) -> tuple[str, int]:
    parts: list[str] = []
    is_quoted = False
    while piece := _PIECE.match(text, at):
        part = piece[0]
        if part == "\n":
            break
        if part == '"':
            is_quoted = not is_quoted
        elif part[0] in "#;":
            if not is_quoted:
                return "".join(parts).strip(), piece.end()
            parts.append(part[0])
            at += 1
            continue
        elif part[0] != "\\":
            parts.append(part)
        elif part != "\\\n":
            parts.append(_ESCAPES.get(part[1], part[1]))
        at = piece.end()
    return "".join(parts).strip(), at


def _paths_in_command(value: str, top: str, home: str | None) -> Iterator[str]:
    """Yield the words of a shell command that may be paths."""
    command = value.removeprefix("!")
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    for number, word in enumerate(words):
        path = _absolute(word.rstrip(";"), top, home)
        # The shell searches PATH for a first word without a slash. Later words such as `clean` are
        # arguments as often as names, so they count only if they are not folders.
        if "/" in word or (number and not os.path.isdir(path)):
            yield path


def _absolute(value: str, folder: str, home: str | None) -> str:
    if home and (value == "~" or value.startswith("~/")):
        value = home + value[1:]
    return os.path.normpath(os.path.join(folder, value.replace("\0", "")))


def _read(path: str) -> str:
    with SuppressErrors(OSError):
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, "rb") as file:
            return file.read(_LARGEST).decode("utf-8", "surrogateescape")
    return ""
