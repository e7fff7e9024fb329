"""What a test of the page may ask for: a browser, a stage, and the crew of the rows."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from holdfast.http.web_ui import FOLDER, load_page
from tests.browser.chromium import require_chromium
from tests.marks import skip_row
from tests.page.stage import Stage, browsing, staged
from tests.torture.conftest import level, luck, seed, sized, tell

__all__ = ["level", "luck", "seed", "sized", "tell"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's browser, where the page was built that it is to show."""
    # One for each module: its driver has a loop of its own running, which others would meet.
    if load_page(FOLDER) is None:
        skip_row("S09", "the page, which `make setup` builds with Node 20.19 or newer")
    with browsing(require_chromium("S09")) as found:
        yield found


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Stage]:
    """A server that runs with the offline model; the tests of a module share it."""
    with staged(tmp_path_factory.mktemp("stage"), browser) as found:
        yield found


@pytest.fixture
def stage(theatre: Stage) -> Iterator[Stage]:
    """The server, and a browser before it that has seen nothing yet."""
    yield theatre
    theatre.clear()
