"""What can be changed between a question and its answer, so that the answer is for something else.

Each case prepares a folder of its own, names the call that somebody will allow, and makes the
change. `{here}` in a call stands for the name of the folder.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WANTED = "as it was wanted"
OLD = "first\nold words\nlast\n"
PROGRAM = "#!/bin/sh\necho ran > {folder}/ran\n"

Prepare = Callable[[Path], None]
Change = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """One change; the call's arguments are relative to the folder of the case."""

    name: str
    tool: str
    arguments: dict[str, Any]
    prepare: Prepare
    change: Change


def cases() -> Iterator[Case]:
    """Yield everything that can happen to one target in a desk of many."""
    yield from _contents()
    yield from _places()
    yield from _new_files()
    yield from _names()
    yield from _programs()


def _writing(path: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": f"{{here}}/{path}", "content": f"{WANTED}\n", **more}


def _editing(path: str) -> tuple[str, dict[str, Any]]:
    arguments = {"path": f"{{here}}/{path}", "old": "old words", "new": WANTED}
    return "edit_file", arguments


def _three(path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the three ways to change a file that is there."""
    yield ("replace", *_writing(path))
    yield ("append", *_writing(path, mode="append"))
    yield ("edit", *_editing(path))


def _has(name: str = "f.txt", content: str | bytes = OLD) -> Prepare:
    def prepare(folder: Path) -> None:
        raw = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(raw)

    return prepare


def _put(content: str | bytes, name: str = "f.txt") -> Change:
    return _has(name, content)


CONTENTS: dict[str, str | bytes] = {
    "one letter": OLD.replace("first", "fiRst"),
    "one byte more": f"{OLD}.",
    "one byte less": OLD[:-1],
    "a space at a line's end": OLD.replace("first\n", "first \n"),
    "a tab for a space": OLD.replace("old words", "old\twords"),
    "two spaces": OLD.replace("old words", "old  words"),
    "a no-break space": OLD.replace("first", "fir\u00a0st"),
    "a zero-width space": OLD.replace("last", "la\u200bst"),
    "a right-to-left override": OLD.replace("last", "la\u202est"),
    "a soft hyphen": OLD.replace("last", "la\u00adst"),
    "an escape sequence": OLD.replace("last", "\x1b[8mlast\x1b[0m"),
    "a form feed": OLD.replace("last", "\x0clast"),
    "carriage returns": OLD.replace("\n", "\r\n"),
    "a byte order mark": f"\ufeff{OLD}",
    "another case": OLD.upper(),
    "a look-alike": OLD.replace("a", "\u0430"),
    "lines in another order": "last\nold words\nfirst\n",
    "a line more before": f"zeroth\n{OLD}",
    "a line more behind": f"{OLD}after\n",
    "an empty line behind": f"{OLD}\n",
    "the text twice": OLD.replace("first", "old words"),
    "the text gone": OLD.replace("old words", "new words"),
    "all of it twice": OLD * 2,
    "empty": "",
    "binary": b"\x00" * len(OLD),
    "no text": OLD.encode().replace(b"first", b"\xff\xfe\xfd"),
    "composed": f"\u00e9{OLD}",
    "decomposed": f"e\u0301{OLD}",
    "already as wanted": f"{WANTED}\n",
}


def _contents() -> Iterator[Case]:
    for what, content in CONTENTS.items():
        for how, tool, arguments in _three("f.txt"):
            yield Case(f"content, {what}, {how}", tool, arguments, _has(), _put(content))


def _gone(folder: Path) -> None:
    (folder / "f.txt").unlink()


def _instead(make: Callable[[Path], None]) -> Change:
    def change(folder: Path) -> None:
        _gone(folder)
        make(folder / "f.txt")

    return change


def _to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _other(path: Path) -> None:
    """Make a file elsewhere in the desk, and a link to it in the place of the target."""
    (path.parent / "other.txt").write_text(OLD)
    path.symlink_to("other.txt")


def _twice(folder: Path) -> None:
    os.link(folder / "f.txt", folder / "second.txt")


def _other_folder(folder: Path) -> None:
    """Put another folder in the place of the target's."""
    (folder / "d").rename(folder / "moved")
    (folder / "d").mkdir()
    (folder / "d" / "f.txt").write_text(f"other\n{OLD}")


def _linked_folder(folder: Path) -> None:
    (folder / "d").rename(folder / "moved")
    (folder / "d").symlink_to("moved")


def _folder_outside(folder: Path) -> None:
    outside = folder.parent.parent / "outside" / folder.name
    outside.mkdir(parents=True)
    (outside / "f.txt").write_text(OLD)
    shutil.rmtree(folder / "d")
    (folder / "d").symlink_to(outside)


def _folder_gone(folder: Path) -> None:
    shutil.rmtree(folder / "d")


def _in_folder(folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "d" / "f.txt").write_text(OLD)


def _places() -> Iterator[Case]:
    instead: dict[str, Change] = {
        "gone": _gone,
        "a folder": _instead(Path.mkdir),
        "a link to a file inside": _instead(_other),
        "a link to nowhere": _instead(_to("nowhere.txt")),
        "a link outside": _instead(_to("/etc/hosts")),
        "a pipe": _instead(os.mkfifo),
        "linked twice": _twice,
        "read-only": lambda folder: (folder / "f.txt").chmod(0o444),
    }
    for what, change in instead.items():
        for how, tool, arguments in _three("f.txt"):
            yield Case(f"place, {what}, {how}", tool, arguments, _has(), change)
    folders: dict[str, Change] = {
        "another folder": _other_folder,
        "a linked folder": _linked_folder,
        "a folder outside": _folder_outside,
        "no folder": _folder_gone,
    }
    for what, change in folders.items():
        for how, tool, arguments in _three("d/f.txt"):
            yield Case(f"place, {what}, {how}", tool, arguments, _in_folder, change)


def _nothing(_: Path) -> None:
    """Prepare nothing."""


def _new_files() -> Iterator[Case]:
    there: dict[str, Change] = {
        "a file": _put(OLD),
        "an empty file": _put(""),
        "the same file": _put(f"{WANTED}\n"),
        "a folder": lambda folder: (folder / "f.txt").mkdir(),
        "a link inside": lambda folder: _other(folder / "f.txt"),
        "a link to nowhere": lambda folder: (folder / "f.txt").symlink_to("nowhere.txt"),
        "a link outside": lambda folder: (folder / "f.txt").symlink_to("/etc/holdfast-never"),
        "a pipe": lambda folder: os.mkfifo(folder / "f.txt"),
    }
    for what, change in there.items():
        for mode in ("replace", "create", "append"):
            tool, arguments = _writing("f.txt", mode=mode)
            yield Case(f"new, {what}, {mode}", tool, arguments, _nothing, change)
    for mode in ("replace", "append"):
        tool, arguments = _writing("d/f.txt", mode=mode, create_dirs=True)

        def outside(folder: Path) -> None:
            (folder / "d").symlink_to(folder.parent.parent)

        yield Case(f"new, a folder that leads outside, {mode}", tool, arguments, _nothing, outside)


def _renamed(old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        (folder / old).rename(folder / new)

    return change


NAMES = {
    "another case": ("f.txt", "F.txt"),
    "a space behind": ("f.txt", "f.txt "),
    "a space before": ("f.txt", " f.txt"),
    "a dot behind": ("f.txt", "f.txt."),
    "composed": ("e\u0301.txt", "\u00e9.txt"),
    "decomposed": ("\u00e9.txt", "e\u0301.txt"),
    "a look-alike": ("a.txt", "\u0430.txt"),
    "a zero-width joiner": ("ab.txt", "a\u200db.txt"),
    "a soft hyphen": ("ab.txt", "a\u00adb.txt"),
    "full width": ("a.txt", "\uff41.txt"),
}


def _names() -> Iterator[Case]:
    for what, (old, new) in NAMES.items():
        for how, tool, arguments in _three(old):
            yield Case(f"name, {what}, {how}", tool, arguments, _has(old), _renamed(old, new))


def _program(folder: Path, name: str = "run.sh", more: str = "") -> None:
    path = folder / name
    path.write_text(f"{PROGRAM.format(folder=folder)}{more}")
    path.chmod(0o755)


def _replaced(folder: Path) -> None:
    """Put a program of the same size and time in its place."""
    path = folder / "run.sh"
    seen = path.stat()
    path.rename(folder / "old.sh")
    _program(folder)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def _rewritten(folder: Path) -> None:
    """Write into the very same file."""
    path = folder / "run.sh"
    path.write_text(path.read_text().replace("echo ran", "echo RAN"))


def _longer(folder: Path) -> None:
    _program(folder, more="# more\n")


def _touched(folder: Path) -> None:
    os.utime(folder / "run.sh", (1_700_000_000, 1_700_000_000))


def _linked_program(folder: Path) -> None:
    _program(folder, "other.sh")
    _no_program(folder)
    (folder / "run.sh").symlink_to("other.sh")


def _system_program(folder: Path) -> None:
    _no_program(folder)
    (folder / "run.sh").symlink_to("/bin/true")


def _no_program(folder: Path) -> None:
    (folder / "run.sh").unlink()


def _folder_as_program(folder: Path) -> None:
    _no_program(folder)
    (folder / "run.sh").mkdir()


def _pipe_as_program(folder: Path) -> None:
    _no_program(folder)
    os.mkfifo(folder / "run.sh")


PROGRAMS: dict[str, Change] = {
    "replaced": _replaced,
    "rewritten": _rewritten,
    "longer": _longer,
    "touched": _touched,
    "a link to another": _linked_program,
    "a link to the system's": _system_program,
    "gone": _no_program,
    "not executable": lambda folder: (folder / "run.sh").chmod(0o644),
    "a folder": _folder_as_program,
    "another case": _renamed("run.sh", "RUN.sh"),
    "a space behind": _renamed("run.sh", "run.sh "),
    "a pipe": _pipe_as_program,
}


def _programs() -> Iterator[Case]:
    for what, change in PROGRAMS.items():
        for number, args in enumerate(([], ["a b", "c"])):
            arguments = {"command": "{here}/run.sh", "args": args}
            name = f"program, {what}, {number}"
            yield Case(name, "run_command", arguments, _program, change)
