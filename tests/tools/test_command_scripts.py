"""A yes to a command is a yes to the scripts that it names, as they were."""

import os
from pathlib import Path

import pytest

from holdfast.ports.tools import PlannedCall
from tests.tools.process_fixture import PYTHON, Workbench, codes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# A command, and a file that decides what it does.
CALLS = [
    ("sh t.sh", "t.sh"),
    ("sh ./deep/t.sh", "deep/t.sh"),
    ("env sh t.sh", "t.sh"),
    (f"{PYTHON} x.py", "x.py"),
    (f"{PYTHON} -m tool", "tool.py"),
    (f"{PYTHON} -m pack.age", "pack/age/__main__.py"),
    ("sh t.sh --config=more.conf", "more.conf"),
    ("make", "Makefile"),
    ("make test", "makefile"),
    ("make -C deep", "deep/Makefile"),
    ("make -f other.mk", "other.mk"),
    ("env make", "GNUmakefile"),
    (f"{PYTHON} -m pytest", "conftest.py"),
    ("./run", "run"),
]


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    """Be a folder without a repository."""
    return Workbench(tmp_path)


def program(bench: Workbench, name: str, content: str = "#!/bin/sh\necho one\n") -> Path:
    file = bench.work / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(0o755)
    return file


async def planned(bench: Workbench, line: str) -> PlannedCall:
    bench.allow(line)
    command, *args = line.split()
    found = await bench.plan("run_command", command=command, args=args)
    assert isinstance(found, PlannedCall), found
    return found


@pytest.mark.parametrize(("line", "name"), CALLS, ids=[f"{line}: {file}" for line, file in CALLS])
async def test_a_script_that_changed_is_asked_about_again(
    bench: Workbench, line: str, name: str
) -> None:
    # Programs that are not installed here still read what they read.
    bench.environment["PATH"] = f"{bench.user / 'bin'}:{bench.environment['PATH']}"
    (bench.user / "bin").mkdir()
    make = bench.user / "bin/make"
    make.write_text("#!/bin/sh\n")
    make.chmod(0o755)
    file = program(bench, name)
    before = await planned(bench, line)
    found = file.stat()

    # Of the same size, inode and time: only the content tells.
    with file.open("r+") as opened:
        opened.write("#!/bin/sh\necho two\n")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    done = await bench.toolbox.run(bench.place, before)

    assert codes(done) == ("denied", "target_changed")
    assert (await planned(bench, line)).digest != before.digest


async def test_a_script_that_appears_or_goes_is_a_change(bench: Workbench) -> None:
    absent = await planned(bench, "sh t.sh")
    file = program(bench, "t.sh")
    there = await planned(bench, "sh t.sh")
    file.unlink()

    assert (await planned(bench, "sh t.sh")).digest == absent.digest != there.digest


async def test_an_unchanged_script_runs_and_is_named_in_the_question(bench: Workbench) -> None:
    file = program(bench, "t.sh")
    before = await planned(bench, "sh t.sh")

    done = await bench.toolbox.run(bench.place, before)

    assert f"file: {file.resolve()}" in before.question.splitlines()
    assert done.result["stdout"] == "one\n"


async def test_what_is_no_regular_file_is_not_waited_for(bench: Workbench) -> None:
    os.mkfifo(bench.work / "pipe")

    found = await planned(bench, "sh pipe")

    assert "file:" not in found.question


async def test_a_link_that_leads_elsewhere_is_a_change(bench: Workbench) -> None:
    program(bench, "one.sh")
    program(bench, "two.sh")
    (bench.work / "t.sh").symlink_to("one.sh")
    before = await planned(bench, "sh t.sh")

    (bench.work / "t.sh").unlink()
    (bench.work / "t.sh").symlink_to("two.sh")

    assert (await planned(bench, "sh t.sh")).digest != before.digest
