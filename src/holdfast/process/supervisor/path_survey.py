"""Find protected paths of a workspace, and those that a command created without permission.

The workspace is surveyed twice. Before the command starts, every protected path is listed for
`path_covers.py`. A path that does not exist cannot be covered, so the survey runs again after the
command: a protected path that is new, or that is a different file than before, is renamed. The
rules themselves are in `protected_paths.py`.
"""

from __future__ import annotations

import errno
import os
import re
import stat

from holdfast.process.protected_paths import (
    CREDENTIALS,
    KEY_HEAD,
    ProtectedPaths,
    fold_name,
    fold_path,
    is_private_key,
)
from holdfast.process.supervisor.git_config import named_paths
from holdfast.process.supervisor.path_covers import HIDDEN, PINNED, READ_ONLY, SETTINGS
from holdfast.process.supervisor.syscalls import StepRefused, SuppressErrors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    Names = tuple[str, ...]
    Identity = tuple[int, int]

ASIDE = ".moved-aside"

_GIT_NAMES = frozenset({".git", "git~1"})
_GIT_MARKS = frozenset({"HEAD", "objects", "refs"})
_GIT_SETTINGS = ("config", "config.worktree")
# Paths that git executes or follows. Git does not write them to add, commit or check out.
_GIT_STEERING = ("commondir", "gitdir", "hooks", "info")
# Those of them that lead git to other hooks or to another configuration.
_GIT_REDIRECTS = ("commondir", "hooks")
_POINTER_LARGEST = 4096
# Only files with such names are opened to check for a private key header.
_MAY_BE_KEY = re.compile(r"[^.]+|.*(?:key|pem|priv|secret|\.p8|\.ppk|\.asc|\.gpg).*", re.IGNORECASE)
_KEY_LARGEST = 64 << 10
# Folders of a home that contain autostart and credential files.
_IN_HOME = ("", ".config", ".config/git", ".local/share", ".docker", "Library")
# The user's git settings. Git does not run without them, so they are filtered, not hidden.
_USER_SETTINGS = (("", ".gitconfig"), ("", ".config", "git", "config"))
_IN_SYSTEM = ("/etc", "/etc/xdg", "/var/spool")
_SYSTEM_SETTINGS = "/etc/gitconfig"
# Identity of a path that does not exist and must not be created.
_ABSENT = (0, 0)
# A longer path leaves no room below PATH_MAX for a name in the folder with `ASIDE` at its end.
_PATH_LONGEST = 3800
# Each covered script costs a mount; a repository on some file systems has only executable files.
_SCRIPTS_MOST = 1000


class Survey:
    """The protected paths of a workspace at the time of construction."""

    def __init__(self, guard: dict[str, Any]) -> None:
        self.covers: dict[str, str] = {}
        # Protected paths with their identity, and their target if they are symbolic links.
        self.known: dict[str, tuple[Identity, str]] = {}
        # Executable scripts. Commands may create new ones, but not write or replace these.
        self.scripts: set[str] = set()
        self._protected = ProtectedPaths(())
        self._roots: tuple[str, ...] = guard["roots"]
        self._home: str | None = guard["home"]
        self._outside = {*guard["outside"]}
        self._open_names = {fold_name(name) for name in guard["open_names"]}
        self._writes_git: bool = guard["writes_git"]
        self._writes_sensitive: bool = guard["writes_sensitive"]
        self._is_jailed: bool = guard["is_jailed"]
        self._linked: dict[Identity, str] = {}
        self._repositories: set[tuple[str, str]] = set()
        for root in self._roots:
            self._survey_root(root)
        if not self._is_jailed:
            self._survey_outside(self._home)
        for git_dir, top in sorted(self._repositories):
            self._add_named_by_git(git_dir, top)
        self._add_scripts()
        self._find_links_of_credentials(guard["hidden"])
        self._find_hard_links()
        self._pin_folders()

    def _survey_root(self, root: str) -> None:
        if root not in self._outside:
            self.covers[root] = PINNED
        for path, names, entries in self._folders(root):
            if {entry.name for entry in entries} >= _GIT_MARKS:
                self._add_git(path, path)
                continue
            for entry in entries:
                self._classify(entry, names)

    def _folders(self, root: str) -> Iterator[tuple[str, Names, list[os.DirEntry[str]]]]:
        """Yield a folder and its subfolders, except those that are covered whole or left open."""
        waiting: list[tuple[str, Names]] = [(root, ("",))]
        while waiting:
            path, names = waiting.pop()
            if path in self._outside:
                continue
            try:
                if len(os.fsencode(path)) > _PATH_LONGEST:
                    raise OSError(errno.ENAMETOOLONG, path)
                entries = list(os.scandir(path))
            except OSError as error:
                self._refuse_folder(path, error)
                continue
            yield path, names, entries
            for entry in entries:
                if not self._is_inner(entry):
                    continue
                inner = (*names, fold_name(entry.name))
                kind = self._protected.cover(inner, is_folder=True)
                if kind is None or self._is_open(kind, inner[-1]):
                    waiting.append((entry.path, inner))

    def _refuse_folder(self, path: str, error: OSError) -> None:
        """Hide a folder that cannot be listed, because it may contain protected paths."""
        # Removed or replaced meanwhile (race).
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return
        if path in self._roots:
            raise StepRefused("survey", error.errno)
        self._add(path, "hidden", "")

    def _is_inner(self, entry: os.DirEntry[str]) -> bool:
        is_folder = entry.is_dir(follow_symlinks=False)
        return is_folder and fold_name(entry.name) not in self._open_names

    def _classify(self, entry: os.DirEntry[str], above: Names) -> None:
        name = fold_name(entry.name)
        if entry.is_symlink():
            self._classify_link(entry, (*above[-3:], name))
        elif name in _GIT_NAMES:
            self._add_git(entry.path, os.path.dirname(entry.path))
        elif entry.is_dir(follow_symlinks=False):
            self._add(entry.path, self._protected.cover((*above, name), is_folder=True), name)
        else:
            # Three parents are enough, because folders that a rule covers whole are not entered.
            kind = self._protected.cover(("", *above[-3:], name), is_folder=False)
            if kind is None and _is_key(entry):
                kind = "hidden"
            if kind is None and name not in self._open_names and _is_script(entry):
                self.scripts.add(entry.path)
            self._add(entry.path, kind, name)

    def _classify_link(self, entry: os.DirEntry[str], names: Names) -> None:
        """Cover the target of a protected symbolic link, and record the target."""
        is_git = names[-1] in _GIT_NAMES
        kinds = [self._protected.cover(("", *names), is_folder=each) for each in (False, True)]
        kind = next((each for each in kinds if each), None)
        if not is_git and (kind is None or self._is_open(kind, names[-1])):
            return
        self._remember(entry.path)
        real = os.path.realpath(entry.path)
        if self._is_reached(real) and os.path.exists(real):
            if is_git:
                self._add_git(real, os.path.dirname(entry.path))
            else:
                self._add(real, kind, names[-1])

    def _survey_outside(self, home: str | None) -> None:
        """Survey repositories above the roots, and the protected paths of home and system."""
        for root in self._roots:
            above = root
            while above != "/":
                above = os.path.dirname(above)
                if os.path.lexists(f"{above}/.git"):
                    self._add_git(os.path.realpath(f"{above}/.git"), above)
        folders = [(os.path.join(home, inner), home) for inner in _IN_HOME] if home else []
        for folder, top in [*folders, *((folder, "/") for folder in _IN_SYSTEM)]:
            with SuppressErrors(OSError):
                below = fold_path(os.path.relpath(folder, top).split("/"))
                # Rules for the system match from the root; rules for a home match at any location.
                names = below if top == "/" else ("", *below)
                for entry in os.scandir(folder):
                    if entry.path not in self._outside and entry.path not in self._roots:
                        self._classify_outside(entry, names)

    def _classify_outside(self, entry: os.DirEntry[str], above: Names) -> None:
        path = os.path.realpath(entry.path)
        names = (*above, fold_name(entry.name))
        is_folder = os.path.isdir(path)
        kind = self._protected.cover(names, is_folder=is_folder)
        if kind in ("hidden", "locked") and os.path.exists(path):
            self._add(path, kind, names[-1])
            if names in _USER_SETTINGS:
                self.covers[path] = SETTINGS

    def _add(self, path: str, kind: str | None, name: str) -> None:
        if kind is None or self._is_open(kind, name):
            return
        self.covers[path] = HIDDEN if kind == "hidden" else READ_ONLY
        self._remember(path)

    def _is_open(self, kind: str, name: str) -> bool:
        return kind == "sensitive" and (self._writes_sensitive or name in self._open_names)

    def _add_git(self, path: str, top: str) -> None:
        """Cover the git folder of a working tree, or the `.git` file that points to it."""
        self._remember(path)
        self.covers[path] = PINNED if self._writes_git else READ_ONLY
        if not os.path.isdir(path):
            self.covers[path] = READ_ONLY
            real = _pointer_target(path)
            if real is not None:
                self._repositories.add((real, top))
                if real not in self.covers and self._is_reached(real):
                    self._add_git(real, top)
            return
        self._repositories.add((path, top))
        for name in _GIT_SETTINGS:
            self._add_git_part(os.path.join(path, name), SETTINGS)
        self._add_git_part(os.path.join(path, "credentials"), HIDDEN)
        for name in _GIT_STEERING:
            part = os.path.join(path, name)
            if self._writes_git or os.path.islink(part):
                self._add_git_part(part, READ_ONLY)
        for inner in (*_git_folders(f"{path}/modules"), *_subfolders(f"{path}/worktrees")):
            self._add_git(inner, inner)

    def _add_git_part(self, path: str, kind: str) -> None:
        if os.path.islink(path):
            self._add_named(path, kind)
        elif os.path.exists(path):
            self.covers[path] = kind
            self._remember(path)

    def _add_named_by_git(self, git_dir: str, top: str) -> None:
        """Cover what the configuration of a repository names, and the targets of linked hooks."""
        common = _common_folder(git_dir)
        settings = [f"{common}/config", f"{git_dir}/config.worktree", _SYSTEM_SETTINGS]
        settings += ["/".join((self._home, *names[1:])) for names in _USER_SETTINGS if self._home]
        hooks = [f"{common}/hooks"]
        for config in settings:
            for path in named_paths(config, top, self._home):
                self._add_named(path, READ_ONLY)
                hooks.append(path)
        for folder in hooks:
            for link in _links(folder):
                self._add_named(link, READ_ONLY)

    def _add_named(self, path: str, kind: str) -> None:
        """Cover a path that git follows or runs, with the symbolic links that lead to it."""
        for link in _links_on(path):
            if self._is_reached(link):
                self._remember(link)
        real = os.path.realpath(path)
        if not self._is_below_root(real) or any(real == each for each in self._roots):
            return
        if os.path.exists(real):
            self.covers.setdefault(real, kind)
            self._remember(real)
        else:
            self.known.setdefault(real, (_ABSENT, ""))

    def _add_scripts(self) -> None:
        """Cover executable scripts; the outermost first if there are too many."""
        if self._writes_sensitive:
            return
        outermost = sorted(self.scripts, key=lambda path: (path.count("/"), path))
        for path in outermost[:_SCRIPTS_MOST]:
            self.covers.setdefault(path, READ_ONLY)
            self._remember(path)

    def _pin_folders(self) -> None:
        """Pin the folders above secrets, repositories and protected links.

        If such a folder were moved into an open folder, a later command would not find it covered.
        """
        hidden = [path for path, kind in self.covers.items() if kind in (HIDDEN, SETTINGS)]
        links = [path for path, (_, leads) in self.known.items() if leads]
        tops = {*self._roots}
        if self._home is not None and not self._is_jailed:
            tops.add(self._home)
        for path in (*hidden, *links, *(git_dir for git_dir, _ in self._repositories)):
            for folder in _folders_above(path, tops) or ():
                self.covers.setdefault(folder, PINNED)

    def _is_reached(self, path: str) -> bool:
        return not self._is_jailed or self._is_below_root(path)

    def _is_below_root(self, path: str) -> bool:
        return _folders_above(path, {*self._roots}) is not None or path in self._roots

    def _remember(self, path: str) -> None:
        with SuppressErrors(OSError):
            found = os.lstat(path)
            self.known[path] = _state(path)
            if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and path in self.covers:
                self._linked[found.st_dev, found.st_ino] = self.covers[path]

    def _find_links_of_credentials(self, own: list[str]) -> None:
        """Record secrets outside the workspace that have other hard links, maybe inside it."""
        # Without the folders in Holdfast's own: those are the private folders of sessions.
        files = [path for folder in own for path in _files(folder, with_inner=False)]
        for name in CREDENTIALS if self._home else ():
            files += _files(os.path.join(self._home or "", name), with_inner=True)
        for path in files:
            with SuppressErrors(OSError):
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                    self._linked[found.st_dev, found.st_ino] = HIDDEN

    def _find_hard_links(self) -> None:
        """Cover the other hard links of protected files."""
        for root in self._roots if self._linked else ():
            for _, _, entries in self._folders(root):
                for entry in entries:
                    with SuppressErrors(OSError):
                        found = entry.stat(follow_symlinks=False)
                        kind = self._linked.get((found.st_dev, found.st_ino))
                        if kind is not None:
                            self.covers.setdefault(entry.path, kind)


def _files(folder: str, *, with_inner: bool) -> Iterator[str]:
    """Yield a file, or the files of a folder; symbolic links are not followed."""
    try:
        entries = list(os.scandir(folder))
    except NotADirectoryError:
        yield folder
        return
    except OSError:
        return
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            yield entry.path
        elif with_inner:
            yield from _files(entry.path, with_inner=True)


def refresh_identities(known: dict[str, tuple[Identity, str]]) -> dict[str, tuple[Identity, str]]:
    """Return the same paths with their identities now that they are covered."""
    found = {}
    for path, (identity, _) in known.items():
        now = _state(path)
        if now[0] != _ABSENT or identity == _ABSENT:
            found[path] = now
    return found


def restore(guard: dict[str, Any], before: dict[str, tuple[Identity, str]]) -> list[str]:
    """Rename each protected path that a command has created; return the original paths."""
    moved: list[str] = []
    # Without symbolic links: they can be removed, and their inode number can be reused.
    identities = {identity for identity, leads in before.values() if not leads} - {_ABSENT}
    survey = Survey(guard)
    after = survey.known
    for path in before:
        # No rule has to match what a command has put there: a script may have become a binary.
        after.setdefault(path, _state(path))
    # Outer paths first, because renaming a folder moves everything in it.
    for path in sorted(after):
        identity, leads = after[path]
        is_as_before = path in before and before[path] == (identity, leads)
        is_new_script = path in survey.scripts and path not in before
        if guard["keeps_new"] and (path in before or os.path.basename(path) not in _GIT_REDIRECTS):
            continue
        # A known identity at a new path was moved with a parent folder, not written by the command.
        if is_as_before or is_new_script or identity in identities or identity == _ABSENT:
            continue
        # A rename must not follow a link that the command has put into the path.
        place = next(iter(_links_on(path)), path)
        if os.path.lexists(place) and _move_aside(place):
            moved.append(place)
    for path, (_, leads) in before.items():
        if leads and not os.path.lexists(path) and not guard["keeps_new"]:
            with SuppressErrors(OSError):
                os.symlink(leads, path)
    return moved


def _state(path: str) -> tuple[Identity, str]:
    """Return the identity of a path, and its target if it is a symbolic link."""
    with SuppressErrors(OSError):
        found = os.lstat(path)
        leads = os.readlink(path) if stat.S_ISLNK(found.st_mode) else ""
        return (found.st_dev, found.st_ino), leads
    return _ABSENT, ""


def _folders_above(path: str, tops: set[str]) -> list[str] | None:
    """Return the folders between a path and the nearest top above it; `None` without a top."""
    found: list[str] = []
    while path != "/":
        path = os.path.dirname(path)
        if path in tops:
            return found
        found.append(path)
    return None


def _links_on(path: str) -> list[str]:
    """Return the symbolic links among a path and the folders above it, outermost first."""
    found = []
    while path != "/":
        if os.path.islink(path):
            found.append(path)
        path = os.path.dirname(path)
    return found[::-1]


def _links(folder: str) -> list[str]:
    with SuppressErrors(OSError):
        return [entry.path for entry in os.scandir(folder) if entry.is_symlink()]
    return []


def _common_folder(git_dir: str) -> str:
    """Return the folder with the configuration and hooks that working trees share."""
    with SuppressErrors(OSError):
        line = os.fsdecode(_head(f"{git_dir}/commondir", _POINTER_LARGEST)).strip("\n")
        return os.path.realpath(os.path.join(git_dir, line))
    return git_dir


def _move_aside(path: str) -> bool:
    # A command could take the first name, and a long name leaves no room for an ending.
    other = os.path.join(os.path.dirname(path), f"protected-{os.urandom(8).hex()}{ASIDE}")
    for target in (f"{path}{ASIDE}", other):
        if os.path.lexists(target):
            continue
        with SuppressErrors(OSError):
            os.rename(path, target)
            found = os.lstat(target)
            # Not executable, because some folders (hooks) run every executable file, whatever its
            # name.
            if stat.S_ISREG(found.st_mode):
                os.chmod(target, stat.S_IMODE(found.st_mode) & 0o666)
            return True
    return False


def _is_key(entry: os.DirEntry[str]) -> bool:
    if _MAY_BE_KEY.fullmatch(entry.name) is None:
        return False
    with SuppressErrors(OSError):
        if not entry.is_file(follow_symlinks=False) or entry.stat().st_size > _KEY_LARGEST:
            return False
        return is_private_key(_head(entry.path, KEY_HEAD))
    return False


def _is_script(entry: os.DirEntry[str]) -> bool:
    """Return whether this is an executable text; builds may replace binaries."""
    with SuppressErrors(OSError):
        if entry.is_file(follow_symlinks=False):
            mode = entry.stat(follow_symlinks=False).st_mode
            return bool(mode & 0o111) and _head(entry.path, 2) == b"#!"
    return False


def _head(path: str, size: int) -> bytes:
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(opened, size)
    finally:
        os.close(opened)


def _pointer_target(path: str) -> str | None:
    """Return the folder that a `.git` file points to."""
    with SuppressErrors(OSError):
        line = os.fsdecode(_head(path, _POINTER_LARGEST)).strip("\n")
        if line.startswith("gitdir: "):
            return os.path.realpath(os.path.join(os.path.dirname(path), line[8:]))
    return None


def _subfolders(path: str) -> Iterable[str]:
    with SuppressErrors(OSError):
        return [each.path for each in os.scandir(path) if each.is_dir(follow_symlinks=False)]
    return ()


def _git_folders(path: str) -> Iterator[str]:
    """Yield the repositories of submodules, whose names may contain slashes."""
    for inner in _subfolders(path):
        if os.path.lexists(f"{inner}/HEAD"):
            yield inner
        else:
            yield from _git_folders(inner)
