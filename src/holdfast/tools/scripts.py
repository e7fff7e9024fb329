"""Which files besides the program decide what a command does: its scripts, and their contents.

A yes to `sh t.sh` is a yes to what `t.sh` holds, so the digest of a call covers the content of
every file that its words name, of the program itself where it lies in the workspace, and of the
files that known programs read by themselves (a makefile, `package.json`). Files that a script
goes on to read are not followed.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from msgspec import Struct

from holdfast.tools.environments import is_below
from holdfast.tools.programs import Program
from holdfast.tools.surroundings import Surroundings

# Beyond this much a file is told by its inode and its times, not by its content.
_READ_MOST: Final = 64 << 20
_PIECE: Final = 1 << 20

_MAKE: Final = ("GNUmakefile", "makefile", "Makefile")
_NODE: Final = ("package.json", ".npmrc", ".yarnrc.yml", ".pnpmfile.cjs", "bunfig.toml")
_PYTHON: Final = ("pyproject.toml", "setup.py", "setup.cfg")
_PYTEST: Final = ("conftest.py", "pytest.ini", "tox.ini", *_PYTHON)
_GRADLE: Final = (
    *("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
    *("gradle.properties", "gradle/wrapper/gradle-wrapper.properties"),
)
_COMPOSE: Final = (
    *("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"),
    *("Dockerfile", "Containerfile"),
)
# What a program reads by itself, in its folder and in those that its words name.
_ENTRY_POINTS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("make", "gmake", "bmake"), _MAKE),
    **dict.fromkeys(("npm", "npx", "yarn", "pnpm", "pnpx", "bun", "bunx"), _NODE),
    **dict.fromkeys(("pytest", "py.test"), _PYTEST),
    **dict.fromkeys(("pip", "uv", "poetry", "pdm", "hatch", "flit"), _PYTHON),
    **dict.fromkeys(("gradle", "gradlew"), _GRADLE),
    **dict.fromkeys(("mvn", "mvnw"), ("pom.xml", ".mvn/jvm.config", ".mvn/maven.config")),
    **dict.fromkeys(("docker", "podman", "docker-compose"), _COMPOSE),
    **dict.fromkeys(("task", "go-task"), ("Taskfile.yml", "Taskfile.yaml")),
    **dict.fromkeys(("bundle", "bundler"), ("Gemfile", "Rakefile")),
    "just": ("justfile", "Justfile", ".justfile"),
    "cargo": ("Cargo.toml", "build.rs", ".cargo/config.toml", ".cargo/config"),
    "cmake": ("CMakeLists.txt", "CMakePresets.json"),
    "ctest": ("CTestTestfile.cmake",),
    "ninja": ("build.ninja",),
    "meson": ("meson.build",),
    "tox": ("tox.ini", *_PYTHON),
    "nox": ("noxfile.py",),
    "rake": ("Rakefile", "rakefile", "Rakefile.rb", "rakefile.rb"),
    "ant": ("build.xml",),
    "composer": ("composer.json",),
    "deno": ("deno.json", "deno.jsonc"),
    "mix": ("mix.exs",),
    "sbt": ("build.sbt",),
    "pre-commit": (".pre-commit-config.yaml",),
    "lefthook": ("lefthook.yml", "lefthook.yaml"),
}


class Script(Struct, frozen=True, kw_only=True):
    """A file that decides what a command does; the fingerprint changes with its content."""

    path: str
    fingerprint: str


def scripts_of(call: tuple[str, ...], program: Program, around: Surroundings) -> tuple[Script, ...]:
    """Return the scripts of a call as they are now; reads the files."""
    left = _READ_MOST
    found = []
    for path in dict.fromkeys(_candidates(call, program, around)):
        script, read = _script(path, left)
        left -= read
        found += [script] if script is not None else []
    return tuple(found)


def _candidates(call: tuple[str, ...], program: Program, around: Surroundings) -> Iterator[str]:
    if any(is_below(program.real, root) for root in around.roots):
        yield program.real
    folders = [around.folder]
    for word in _values(call[1:]):
        path = os.path.join(around.folder, word)
        if os.path.isdir(path):
            folders.append(path)
        yield path
    # Any word, because a command may hand the rest to another: `env make`, `python -m pytest`.
    for name in dict.fromkeys(os.path.basename(word) for word in call):
        for folder in folders:
            yield from (os.path.join(folder, each) for each in _ENTRY_POINTS.get(name, ()))
    for option, module in pairwise(call):
        if option == "-m":
            below = os.path.join(around.folder, *module.split("."))
            yield from (f"{below}.py", f"{below}/__main__.py", f"{below}/__init__.py")


def _values(words: tuple[str, ...]) -> Iterator[str]:
    """Yield what could be a path: each word, and the value of an option that holds one."""
    for word in words:
        yield word
        _, sign, value = word.partition("=")
        if sign:
            yield value


def _script(path: str, most: int) -> tuple[Script | None, int]:
    """Return a regular file with its fingerprint, and how much of it was read."""
    real = os.path.realpath(path)
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    # Nothing there, or nothing that can be read: then the command cannot read it, either.
    except (OSError, ValueError):
        return None, 0
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None, 0
        if found.st_size > most:
            times = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            return Script(path=real, fingerprint=f"{found.st_dev}:{found.st_ino}:{times}"), 0
        digest, size = hashlib.sha256(), 0
        while size <= most and (piece := os.read(descriptor, _PIECE)):
            digest.update(piece)
            size += len(piece)
        return Script(path=real, fingerprint=digest.hexdigest()), size
    finally:
        os.close(descriptor)
