"""S33: what we are built from is locked by hash, without a known hole, and quiet when imported."""

import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.house.source import ROOT
from tests.house.test_no_addresses import LOCKS, requirements, versions
from tests.house.test_no_effects_at_import import effects
from tests.marks import proves, skip_row
from tests.torture.conftest import Tell

pytestmark = pytest.mark.slow

HOLES = Path(__file__).with_name("holes.toml")
# To know whether the machine has IPv6 it binds to its own loopback; nothing is sent.
PROBE = ("urllib3", "requests", "tiktoken")
# The largest, which take seconds to import; for the levels that have them.
VENDORS = ("anthropic", "openai", "pydantic_ai", "pydantic_graph", "mcp")


@proves("S33")
def test_every_package_is_locked_by_hash_and_has_no_known_hole(tell: Tell) -> None:
    locked = {name: versions(name) for name in LOCKS}

    found = [hole for each in locked.values() for hole in known_holes(each)]

    holes = _count(tomllib.loads(HOLES.read_text("utf-8")))
    tell(f"{sum(map(len, locked.values()))} locked, {holes} published holes, {len(found)} open")
    assert [line for name in LOCKS for line, hashes in requirements(name) if not hashes] == []
    assert found == []


@proves("S33")
def test_an_older_lock_has_holes() -> None:
    older = {"starlette": "1.0.0", "mcp": "1.27.2", "h11": "0.16.0"}

    assert list(known_holes(older)) == [
        "mcp 1.27.2: CVE-2026-59950",
        "starlette 1.0.0: CVE-2025-62727",
        "starlette 1.0.0: CVE-2026-48710",
        "starlette 1.0.0: CVE-2026-48818",
        "starlette 1.0.0: CVE-2026-54282",
        "starlette 1.0.0: CVE-2026-54283",
    ]


@proves("S33")
def test_no_package_hooks_into_python_or_acts_when_it_is_imported(
    tmp_path: Path, level: str, tell: Tell
) -> None:
    left_out = {*PROBE, *(VENDORS if level == "test" else ())}
    ours = [each for each in distributions() if _name(each) in set(versions(LOCKS[0]))]
    names = sorted({name for each in ours for name in importable(each)} - left_out)

    seen = effects(names, tmp_path)
    probed = effects([PROBE[0]], tmp_path)

    tell(f"{len(ours)} packages, {len(names)} modules imported, {len(seen)} effects")
    assert [f"{_name(each)}: {file}" for each in ours for file in hooks(each)] == []
    assert seen == []
    assert [each for each in probed[1:] if "socket." not in each] == []
    assert [each for each in probed if "connect" in each or "sendto" in each] == []


@proves("S33")
def test_a_package_with_a_hook_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "wheel-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: wheel\nVersion: 1.0\n")
    (folder / "RECORD").write_text("wheel_init.pth,,\nwheel/__init__.py,,\n")
    # Who reads metadata may leave out what is not there.
    (tmp_path / "wheel_init.pth").touch()
    (guilty,) = distributions(path=[str(tmp_path)])

    assert list(hooks(guilty)) == ["wheel_init.pth"]


@proves("S33")
def test_an_auditor_finds_nothing_either(level: str, tell: Tell) -> None:
    if level != "release":
        return
    auditor = shutil.which("pip-audit")
    if auditor is None:
        skip_row("S33", "pip-audit and a way to its database")
    command = [auditor, "--strict", "--require-hashes", "--disable-pip", "-r", LOCKS[0]]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    tell("asked an auditor")
    assert run.returncode == 0, run.stdout


def known_holes(locked: Mapping[str, str]) -> Iterator[str]:
    """Yield the published holes that locked versions still have."""
    for name, fixes in tomllib.loads(HOLES.read_text("utf-8")).items():
        for fixed, ids in fixes.items():
            if name in locked and Version(locked[name]) < Version(fixed):
                yield from (f"{name} {locked[name]}: {id_}" for id_ in ids)


def hooks(package: Distribution) -> Iterator[str]:
    """Yield the files with which a package runs at every start of Python."""
    for file in package.files or ():
        if file.suffix == ".pth" or file.name in {"sitecustomize.py", "usercustomize.py"}:
            yield str(file)


def importable(package: Distribution) -> Iterator[str]:
    """Yield the modules by which a package is known."""
    for file in package.files or ():
        top, *rest = file.parts
        if rest[:1] == ["__init__.py"] and len(rest) == 1 and top.isidentifier():
            yield top


def _name(package: Distribution) -> str:
    return canonicalize_name(package.metadata["Name"])


def _count(holes: Mapping[str, Mapping[str, list[str]]]) -> int:
    return sum(len(ids) for fixes in holes.values() for ids in fixes.values())
