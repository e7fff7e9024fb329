"""Takes the pictures of the documents anew: `python -m tests.page.pictures`."""

import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.chromium import require_chromium
from tests.house.source import ROOT
from tests.page.demo import prepare
from tests.page.stage import browsing, staged

FOLDER = ROOT / "docs" / "pictures"
DESK = {"width": 1200, "height": 820}
PHONE = {"width": 390, "height": 720}
# Where the demonstration lies on this machine is nobody's business.
AT_HOME = """(folder) => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) walk.currentNode.data = walk.currentNode.data.replaceAll(folder, "~");
}"""


def main() -> None:
    """Let a demonstration happen and take pictures of it."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with (
            browsing(require_chromium("S09")) as browser,
            staged(folder / "stage", browser) as stage,
        ):
            sessions = prepare(stage)
            page = stage.window("/", viewport=DESK, color_scheme="light", device_scale_factor=1.5)
            fixed, asking = f"/sessions/{sessions['fixed']}", f"/sessions/{sessions['asking']}"
            for name, path, theme, size in (
                ("session-light", fixed, "light", DESK),
                ("question-dark", asking, "dark", DESK),
                ("timeline-light", "/timeline", "light", DESK),
                ("phone-light", fixed, "light", PHONE),
                ("phone-dark", "/sessions", "dark", PHONE),
            ):
                page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
                page.set_viewport_size({"width": size["width"], "height": size["height"]})
                page.goto(stage.server.url + path)
                take(page, folder / "stage", FOLDER / f"{name}.png")
            stage.clear()


def take(page: Page, folder: Path, file: Path) -> None:
    """Take a picture of a window once everything is drawn."""
    expect(page.locator("h1:visible, .list li:visible").first).to_be_visible()
    page.wait_for_timeout(1_500)
    page.evaluate(AT_HOME, str(folder))
    page.screenshot(path=file, animations="disabled")


if __name__ == "__main__":
    main()
