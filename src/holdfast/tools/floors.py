"""What no tool reads and none writes, in every tier; and what is never written without asking.

Paths are judged by their names alone, as the laxest file system would compare them; the one thing
told by content is a private key.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from holdfast.tools.run_later import run_later

# The names of a path from the root of the file system on, folded.
Names = tuple[str, ...]
# Not readable; not writable; not writable unless the user's settings name it.
Cover = Literal["hidden", "locked", "sensitive"]

_HIDDEN_FOLDERS: Final = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".azure", "gcloud"})
_HIDDEN_FILES: Final = frozenset(
    {
        ".env",
        ".envrc",
        ".netrc",
        "_netrc",
        ".npmrc",
        ".pypirc",
        ".pgpass",
        ".git-credentials",
        ".gitconfig",
        ".dockercfg",
    }
)
# Where a user's credentials are, below their home.
CREDENTIALS: Final = (
    *sorted(_HIDDEN_FOLDERS - {"gcloud"}),
    *sorted(_HIDDEN_FILES),
    *(".config/gcloud", ".docker/config.json", ".config/git/credentials"),
)
_SAMPLES: Final = frozenset({".env.example", ".env.sample", ".env.template"})
_GIT_SECRETS: Final = frozenset({"config", "config.worktree", "credentials"})
# Any name without an ending may be a key; a source file called id_map.py is none.
_KEY_FILE: Final = re.compile(r"id_(?:rsa|dsa|ecdsa|ed25519|xmss).*(?<!\.pub)|id_[^.]+")
_KEY_HEADER: Final = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_HEAD: Final = 4096
# Stands for every name that no rule knows.
_ANY_NAME: Final = "\x00"

# `git~1` is how some file systems spell `.git`.
_OURS_AND_GIT: Final = frozenset({".git", "git~1", ".holdfast"})
_START_FILES: Final = frozenset(
    {
        *(".profile", ".login", ".logout", ".inputrc", ".pam_environment"),
        *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases"),
        *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout"),
        *(".kshrc", ".mkshrc", ".cshrc", ".tcshrc"),
        *(".xinitrc", ".xprofile", ".xsession", ".xsessionrc", ".xserverrc"),
        *("authorized_keys", "authorized_keys2"),
    }
)
_POWERSHELL_PROFILE: Final = re.compile(r"(?:.*_)?profile\.ps1")
_START_FOLDERS: Final = (
    (".config", "fish"),
    (".config", "nushell"),
    (".config", "powershell"),
    (".config", "git"),
    (".config", "systemd"),
    (".config", "environment.d"),
    (".config", "autostart"),
    (".config", "autostart-scripts"),
    (".config", "plasma-workspace"),
    (".local", "share", "systemd"),
    (".local", "share", "dbus-1"),
    ("library", "launchagents"),
    ("library", "launchdaemons"),
    ("start menu", "programs", "startup"),
    ("documents", "powershell"),
    ("windowspowershell",),
)
# Only where the system looks for them: a project may hold the tree of another machine.
_SYSTEM_START: Final = (
    ("etc", "profile"),
    ("etc", "profile.d"),
    ("etc", "environment"),
    ("etc", "bash.bashrc"),
    ("etc", "bashrc"),
    ("etc", "zsh"),
    ("etc", "zshrc"),
    ("etc", "zshenv"),
    ("etc", "zprofile"),
    ("etc", "gitconfig"),
    ("etc", "systemd"),
    ("etc", "cron.d"),
    ("etc", "crontab"),
    ("etc", "xdg", "autostart"),
    ("etc", "ssh"),
    ("etc", "sudoers"),
    ("etc", "sudoers.d"),
    ("etc", "ld.so.preload"),
    ("var", "spool", "cron"),
)


def folded(name: str) -> str:
    """Return a name as the laxest file system compares it: case, form, ending and stream apart."""
    if not name.isascii():
        name = "".join(each for each in name if unicodedata.category(each) != "Cf")
        name = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return name.lower().partition(":")[0].rstrip(". ")


def folded_path(names: Iterable[str]) -> Names:
    """Return a path's names folded, without those that name nothing."""
    return tuple(name for name in map(folded, names) if name)


class Floors:
    """The rules, with the folders of this installation that nobody else reads or writes."""

    def __init__(self, protected: Iterable[Sequence[str]]) -> None:
        folders = (folded_path(names) for names in protected)
        self._protected = tuple(names for names in folders if names)

    def hides(self, path: Names, *, is_folder: bool) -> bool:
        """Tell whether nobody may read this."""
        if not _HIDDEN_FOLDERS.isdisjoint(path):
            return True
        if any(path[: len(names)] == names for names in self._protected):
            return True
        # Devices; memory that is shared by name is a folder like any other.
        if path[:1] == ("dev",) and path[1:2] not in ((), ("shm",)):
            return True
        return not is_folder and bool(path) and _is_hidden_file(path)

    def locks(self, path: Names) -> bool:
        """Tell whether nobody may write this file."""
        if self.hides(path, is_folder=False) or not _OURS_AND_GIT.isdisjoint(path):
            return True
        if any(path[: len(names)] == names for names in _SYSTEM_START):
            return True
        if any(_passes(path, names) for names in _START_FOLDERS):
            return True
        name = _last(path)
        return name in _START_FILES or _POWERSHELL_PROFILE.fullmatch(name) is not None

    def cover(self, path: Names, *, is_folder: bool) -> Cover | None:
        """Return how a command finds this; `None` is as it is.

        A folder is covered when everything in it would be, whatever it is called.
        """
        if self.hides(path, is_folder=is_folder):
            return "hidden"
        whole = (*path, _ANY_NAME) if is_folder else path
        if self.locks(whole):
            return "locked"
        return "sensitive" if is_sensitive(whole) else None


def is_sensitive(path: Names) -> bool:
    """Tell whether other programs run later what is written here; `run_later.py` has the table."""
    return run_later(path) is not None


def is_private_key(head: bytes) -> bool:
    """Tell whether a file that begins so holds a private key."""
    return _KEY_HEADER.search(head) is not None


def _is_hidden_file(path: Names) -> bool:
    *folders, name = path
    if name in _HIDDEN_FILES or _KEY_FILE.fullmatch(name):
        return True
    if name.startswith(".env."):
        return name not in _SAMPLES
    if name == "config.json":
        return ".docker" in folders
    if name in _GIT_SECRETS:
        return any(each.endswith(".git") for each in folders) or folders[-2:] == [".config", "git"]
    return False


def _last(path: Names) -> str:
    return path[-1] if path else ""


def _passes(path: Names, folders: Names) -> bool:
    """Tell whether a path goes through these folders, one after the other."""
    if folders[0] not in path:
        return False
    size = len(folders)
    return any(path[at : at + size] == folders for at in range(len(path) - size + 1))
