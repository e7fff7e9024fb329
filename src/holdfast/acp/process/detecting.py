"""Looks for well-known programs on this machine, and for what version they are.

A version is read from where the program was unpacked. Only where nothing lies there is the program
asked, and briefly: some would begin to work.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from holdfast.acp.process.launching import find
from holdfast.acp.process.presets import PRESETS, Preset

ASKED_SECONDS: Final = 3.0
# A package lies at most so far above the file that its command points to.
_NEAR: Final = 6
_HEAD: Final = 512
_VERSION: Final = re.compile(r"\d+\.\d+[\w.+-]*")
_INTERPRETER: Final = re.compile(rb"(/[^\s\"']*python[\d.]*)")
_ASK_PYTHON: Final = (
    "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
)


class Detected(Struct, frozen=True, kw_only=True):
    """A well-known program: where it is and what version, as far as that can be told."""

    preset: str
    title: str
    command: str
    path: str | None
    version: str | None
    install: str


async def detect(environment: Mapping[str, str]) -> list[Detected]:
    """Look for every preset's program on the environment's PATH, by name."""
    return list(await asyncio.gather(*(_detected(name, environment) for name in sorted(PRESETS))))


async def _detected(name: str, environment: Mapping[str, str]) -> Detected:
    preset = PRESETS[name]
    path = find(preset.command, environment)
    version = None if path is None else await version_of(path, preset, environment)
    if preset.module is not None and version is None:
        # An interpreter is everywhere; what it would run is not.
        path = None
    return Detected(
        preset=name,
        title=preset.title,
        command=preset.command,
        path=path,
        version=version,
        install=preset.install,
    )


async def version_of(path: str, preset: Preset, environment: Mapping[str, str]) -> str | None:
    """Return what version the program at a path is, if that can be told soon."""
    unpacked = await asyncio.to_thread(_unpacked_version, Path(path), preset.package)
    if unpacked is not None:
        return unpacked
    python = path if preset.module else await asyncio.to_thread(_interpreter_of, Path(path))
    if python is not None:
        # Isolated, so that nothing of the current folder is run.
        argv: tuple[str, ...] = (python, "-I", "-c", _ASK_PYTHON, preset.package)
    else:
        argv = (path, "--version")
    found = _VERSION.search(await _asked(argv, environment))
    return found.group() if found else None


def _unpacked_version(path: Path, package: str) -> str | None:
    """Return the version that an npm package around the program says it has."""
    for folder in (*path.resolve().parents,)[:_NEAR]:
        with suppress(OSError, ValueError, msgspec.DecodeError):
            told = msgspec.json.decode((folder / "package.json").read_bytes())
            if told.get("name") == package:
                return str(told["version"])
    return None


def _interpreter_of(path: Path) -> str | None:
    """Return the Python that a script names in its first lines; nothing if it is no such script."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return None
    found = _INTERPRETER.search(head) if head.startswith(b"#!") else None
    return os.fsdecode(found.group(1)) if found else None


async def _asked(argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Run a command for a moment, and return the beginning of what it says."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**environment, "NO_COLOR": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # Its own group, so that whatever it starts can be ended with it.
            start_new_session=True,
        )
    except OSError:
        return ""
    assert process.stdout is not None  # noqa: S101 — for the type checker: it was asked for
    try:
        async with asyncio.timeout(ASKED_SECONDS):
            return (await process.stdout.read(_HEAD)).decode(errors="replace")
    except TimeoutError:
        return ""
    finally:
        # Once it is waited for, its number may be somebody else's.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
        await process.wait()
