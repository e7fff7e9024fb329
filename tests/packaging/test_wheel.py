"""The wheel and the source archive: complete, installable in an empty environment, typed."""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from holdfast import __version__
from tests.docs.blocks import blocks, pages
from tests.house.source import ROOT

pytestmark = pytest.mark.slow

PAGE = "holdfast/http/page/index.html"
GOOD = """\
import asyncio
from typing import assert_type

from msgspec import Struct

from holdfast import Answer, MessageDraft, Role, SessionId, Text, open_holdfast, sync


class Sum(Struct):
    sum: int


async def main() -> None:
    async with open_holdfast() as hf:
        answer = await hf.ask("2+3", output=Sum, model="offline:holdfast")
        assert_type(answer.value, Sum)
        async for item in hf.stream("2+3", session=answer.session_id):
            if isinstance(item, Answer):
                assert_type(item.text, str)
        draft = MessageDraft(role=Role.USER, parts=(Text(text="hi"),))
        assert_type((await hf.record(answer.session_id, [draft])).is_new, bool)


def plain(hf: sync.Holdfast) -> SessionId:
    return hf.ask("2+3", output=Sum).session_id


asyncio.run(main())
"""
# Each line is refused.
BAD = """\
from holdfast import sync


def wrong(hf: sync.Holdfast) -> None:
    hf.ask(5)
    hf.ask("2+3", modell="offline:holdfast")
    hf.ask("2+3", timeout="long")
    hf.ask("2+3", output=int).value.sum
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build both from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    ran([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "archive": archive}


@pytest.fixture(scope="module")
def python(built: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an empty environment.

    Its dependencies, and no other packages, are linked from this environment: a test has no
    network.
    """
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder)
    found = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(found), "install", "-q"]
    ran([*pip, "--no-index", "--no-deps", str(built["wheel"])])
    (site,) = folder.glob("lib/python3*/site-packages")
    for package in required("holdfast"):
        for name in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(package.locate_file(name))))
    return found


def required(name: str) -> Iterator[Distribution]:
    """Yield the packages that a package needs without extras, and what those need."""
    seen, left = set[str](), [name]
    while left:
        for line in distribution(left.pop()).requires or ():
            need = Requirement(line)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            if need.name not in seen:
                seen.add(need.name)
                left.append(need.name)
                yield distribution(need.name)


def test_the_wheel_has_the_source_the_types_and_the_page(built: Mapping[str, Path]) -> None:
    names = set(zipfile.ZipFile(built["wheel"]).namelist())
    sources = {f"holdfast/{path}" for path in tracked("src/holdfast")}

    assert {name for name in sources if not name.endswith("/.gitignore")} <= names
    assert {"holdfast/py.typed", "holdfast/sync.pyi", PAGE} <= names
    assert {name for name in names if not name.startswith(("holdfast/", "holdfast-"))} == set()


def test_the_source_archive_makes_the_same_wheel(built: Mapping[str, Path], tmp_path: Path) -> None:
    with tarfile.open(built["archive"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    ran(command, cwd=folder)
    (again,) = tmp_path.glob("*.whl")

    assert contents(again) == contents(built["wheel"])


def test_the_installed_program_says_its_version(python: Path) -> None:
    assert ran([str(python.parent / "holdfast"), "--version"]).split()[-1] == __version__


def test_the_installed_package_is_imported_alone_and_has_the_page(python: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import holdfast; from pathlib import Path; "
        "folder = Path(holdfast.__file__).parent; "
        "print((folder.parent / 'holdfast/http/page/index.html').exists(), folder); "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    page, loaded = ran([str(python), "-c", code]).splitlines()

    assert page == f"True {next(python.parents[1].glob('lib/*/site-packages'))}/holdfast"
    outside = set(loaded.split()) - set(sys.stdlib_module_names) - {"holdfast"}
    assert (outside, "asyncio" in loaded.split()) == (set(), False)


def test_costs_are_known_without_the_package_of_a_vendor(python: Path) -> None:
    code = (
        "from holdfast.domain.models import model_of; from holdfast.llm.router import prices_of; "
        "print(*[prices_of(model_of(name)).input for name in "
        "('openai:gpt-4o', 'anthropic:claude-haiku-4-5', 'google:gemini-2.5-pro')])"
    )

    assert ran([str(python), "-c", code]).split() == ["250000000", "100000000", "125000000"]


def test_doctor_names_the_extra_that_the_default_model_needs(python: Path, tmp_path: Path) -> None:
    for model, extra in (("google:gemini-2.5-pro", "google"), ("groq:x", "openai")):
        done = subprocess.run(
            [str(python.parent / "holdfast"), "doctor", "--json"],
            capture_output=True,
            text=True,
            env={"HOLDFAST_HOME": str(tmp_path / "home"), "HOLDFAST_MODEL": model},
            timeout=600,
            check=False,
        )

        (finding,) = json.loads(done.stdout)["findings"]
        assert (done.returncode, finding["code"]) == (1, "package_missing")
        assert f"install holdfast[{extra}]" in finding["message"]


def test_the_first_program_of_the_readme_runs(python: Path, tmp_path: Path) -> None:
    (program,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL
    )[:1]

    printed = ran([str(python), "-c", program], HOLDFAST_HOME=str(tmp_path / "home"))

    assert printed.startswith("(3.5*4)/2 = 7\n")


@pytest.mark.torture
def test_a_program_is_checked_against_the_installed_types(python: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-incremental"]
    command += [f"--python-executable={python}", "--python-version=3.11"]
    programs = {"good.py": GOOD, "bad.py": BAD, **shown()}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)

    done = subprocess.run(
        [*command, *programs],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
        check=False,
    )

    faults = list(dict.fromkeys(re.findall(r"^(\S+): error:", done.stdout, re.MULTILINE)))
    lines = range(5, len(BAD.splitlines()) + 1)
    assert faults == [f"bad.py:{number}" for number in lines], done.stdout + done.stderr


def shown() -> dict[str, str]:
    """Return the programs of all pages, and the examples."""
    found = {
        f"{page.stem}_{block.line}.py": block.content
        for page in pages()
        for block in blocks(page.name, page.read_text("utf-8"))
        if block.kind == "python"
    }
    examples = (ROOT / "examples").glob("*.py")
    return found | {f"example_{path.name}": path.read_text("utf-8") for path in examples}


def tracked(folder: str) -> list[str]:
    """Return the files that the repository holds below a folder."""
    listed = ran(["git", "ls-files", folder], cwd=ROOT).splitlines()
    return [path.removeprefix(f"{folder}/") for path in listed]


def contents(wheel: Path) -> dict[str, int]:
    """Return what a wheel holds, by checksum."""
    infos = zipfile.ZipFile(wheel).infolist()
    return {each.filename: each.CRC for each in infos if not each.filename.endswith("RECORD")}


def ran(command: Sequence[str], *, cwd: Path | None = None, **environment: str) -> str:
    """Run a command that must succeed, and return what it printed."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**kept, **environment},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
