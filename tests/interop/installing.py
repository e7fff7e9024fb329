"""Fetches programs into a folder of their own, once; what cannot be had is told with its reason."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.interop.programs import NODE, Package

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 600
# What the newest of all programs are known to need.
NEWEST_NODE: Final = 22


class Missing(Exception):  # noqa: N818 — it says what is, not what went wrong
    """What cannot be had here, and why."""


def cache() -> Path:
    """Return the folder that everything is fetched into."""
    return Path(os.environ.get("INTEROP_CACHE", ROOT / ".interop"))


def command_of(package: Package, *, is_latest: bool = False) -> Path:
    """Return the command of a package, installed if it is not there yet; raises `Missing`."""
    folder = cache() / _folder_name(package, is_latest=is_latest)
    command = folder / ("bin" if package.source == "pypi" else "node_modules/.bin")
    # Marked when done: what was cut off in the middle looks whole.
    mark = folder / ".done"
    if not mark.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _install(package, folder, is_latest=is_latest)
        mark.touch()
    found = command / package.command
    if not found.exists():
        raise Missing(f"{package.name} has no command {package.command}")
    return found


def node_for(package: Package, *, is_latest: bool = False) -> Path:
    """Return the folder of a Node that is new enough, the machine's own if it is."""
    own = shutil.which("node")
    told = ran([own, "--version"], 10) if own else ""
    found = re.match(r"v(\d+)", told)
    least = NEWEST_NODE if is_latest else package.node
    if own and found and int(found.group(1)) >= least:
        return Path(own).parent
    return command_of(NODE).resolve().parent


def _folder_name(package: Package, *, is_latest: bool) -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", package.name.lower()).strip("-")
    # Never the package's own name, which npm would take for a folder to install from.
    return f"{package.source}-{name}-{'latest' if is_latest else package.version}"


def _install(package: Package, folder: Path, *, is_latest: bool) -> None:
    if package.source == "pypi":
        name = package.name if is_latest else f"{package.name}=={package.version}"
        ran([_interpreter(package), "-m", "venv", str(folder)], SECONDS)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        ran([*pip, name, *package.beside], SECONDS)
        return
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("npm is not installed")
    name = f"{package.name}@{'latest' if is_latest else package.version}"
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    ran([npm, "install", "--prefix", str(folder), *quiet, name, *package.beside], SECONDS)


def _interpreter(package: Package) -> str:
    """Return a Python that is new enough for a package, our own if it is."""
    least = package.python
    if sys.version_info >= (3, least):
        return sys.executable
    for minor in range(least, least + 4):
        found = shutil.which(f"python3.{minor}")
        if found is not None:
            return found
    raise Missing(f"it needs Python 3.{least}")


def ran(command: list[str], seconds: float) -> str:
    """Run a command to its end and return what it says; raises `Missing` with its last words."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{Path(command[0]).name} was not done after {seconds:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        # Without addresses: which mirror was asked is of no use to whoever reads this.
        told = re.sub(r"\w+://\S+", "…", "".join(last))[:200]
        raise Missing(f"{Path(command[0]).name} ended with {done.returncode}: {told}")
    return done.stdout
