"""The parts of the page that need no browser, by their own tests, and its shape."""

import re
import subprocess

import pytest

from tests.house.shape import dialect
from tests.house.source import ROOT
from tests.marks import skip_row

UI = ROOT / "ui"
RUNNER = UI / "node_modules" / ".bin" / "vitest"
FILE_CAP = 400
SOURCES = sorted(
    path
    for path in (UI / "src").rglob("*")
    if path.suffix in (".ts", ".tsx", ".css") and path.name != "schema.d.ts"
)


@pytest.mark.slow
def test_the_parts_of_the_page_do_what_they_say() -> None:
    if not RUNNER.exists():
        skip_row("S09", "the page's packages, which `make setup` installs with Node")

    done = subprocess.run(
        [RUNNER, "run", "--reporter=dot", "--testTimeout=60000"],
        cwd=UI,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_of_the_page_are_short_and_say_what_they_hold() -> None:
    texts = {path.relative_to(UI).as_posix(): path.read_text("utf-8") for path in SOURCES}

    assert texts
    assert [name for name, text in texts.items() if text.count("\n") > FILE_CAP] == []
    # What is of any type is of none; and nothing of the page becomes markup by itself.
    assert [
        name for name, text in texts.items() if re.search(r"\bany\b[\[\],;>)]|: any\b", text)
    ] == []
    assert [name for name, text in texts.items() if "dangerouslySet" in text] == []


def test_the_sources_of_the_page_use_plain_words() -> None:
    shown = [*SOURCES, UI / "index.html", UI / "vite.config.ts"]

    assert dialect(path.read_text("utf-8") for path in shown) == {}


def test_the_lock_names_no_address() -> None:
    lock = (UI / "package-lock.json").read_text("utf-8")

    assert '"resolved"' not in lock
    assert lock.count('"integrity"') > 50
