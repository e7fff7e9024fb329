"""What a test of the page may ask for: a browser, a stage, and the crew of the rows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from holdfast.http.page_files import FOLDER, built_page
from tests.browser.chromium import require_chromium
from tests.marks import skip_row
from tests.page.stage import Stage, browsing
from tests.torture.conftest import crew, level, luck, seed, sized, tell
from tests.torture.crew import Crew

__all__ = ["crew", "level", "luck", "seed", "sized", "tell"]


@pytest.fixture
def browser() -> Iterator[Browser]:
    """The system's browser, where the page was built that it is to show."""
    if built_page(FOLDER) is None:
        skip_row("S09", "the page, which `make setup` builds with Node 20.19 or newer")
    with browsing(require_chromium("S09")) as found:
        yield found


@pytest.fixture
def stage(tmp_path: Path, crew: Crew, browser: Browser) -> Iterator[Stage]:
    """A server that runs with the offline model, and a browser before it."""
    found = Stage(crew, tmp_path, browser)
    found.start()
    yield found
    found.close()
    # Whatever a test does: nothing is asked of anybody else, and nothing breaks.
    assert (found.left, found.complaints) == ([], [])
