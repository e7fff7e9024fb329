"""The working directory of a session, and its Git repository and reference."""

import os
import subprocess
from pathlib import Path
from typing import Final

from holdfast.domain.errors import Code, Invalid

# Timeout: a repository on a slow disk must not delay a chat.
GIT_SECONDS: Final = 2.0


def absolute_path(path: Path) -> Path:
    """Return a path of the command line as an absolute one; `~` is expanded as in a shell."""
    # Not `Path.expanduser`, which raises for an unknown user.
    expanded = Path(os.path.expanduser(path))
    try:
        return expanded.absolute()
    except OSError:
        raise Invalid(
            Code.NOT_A_FOLDER, "The current folder does not exist; name an absolute path."
        ) from None


def working_dir(folder: Path | None) -> str | None:
    """Return the folder to work in, links resolved; None if this process has none."""
    if folder is None:
        try:
            return str(Path.cwd().resolve())
        except OSError:
            return None
    try:
        return str(_folder(absolute_path(folder)))
    except (OSError, RuntimeError):
        raise Invalid(
            Code.NOT_A_FOLDER, f"{folder} is not a folder; choose another --cwd."
        ) from None


def _folder(path: Path) -> Path:
    resolved = path.resolve(strict=True)
    if not resolved.is_dir():
        raise NotADirectoryError(path)
    return resolved


def find_repository(folder: str) -> str | None:
    """Return the Git work tree that contains a folder; None if there is none."""
    around = (Path(folder), *Path(folder).parents)
    return next((str(each) for each in around if (each / ".git").exists()), None)


def git_ref(folder: str) -> str | None:
    """Return `branch@commit` of the work tree around a folder, the commit alone when detached."""
    output = _git(folder, "rev-parse", "--is-inside-work-tree", "HEAD", "--abbrev-ref", "HEAD")
    match output:
        # For a detached HEAD, git prints `HEAD` in place of the branch.
        case ["true", commit, "HEAD"]:
            return commit[:12]
        case ["true", commit, branch]:
            return f"{branch}@{commit[:12]}"
        case _:
            return None


# Reading must neither write into the repository, nor prompt for a password, nor fetch.
_READ_ONLY_GIT: Final = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}


def _git(folder: str, *arguments: str) -> list[str]:
    try:
        done = subprocess.run(  # noqa: S603 — fixed words, no shell
            ["git", "-C", folder, *arguments],  # noqa: S607 — the user's own git
            # stdin contains the input for the agent.
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_SECONDS,
            check=False,
            env={**os.environ, **_READ_ONLY_GIT},
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return done.stdout.split() if done.returncode == 0 else []
