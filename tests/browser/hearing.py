"""The EventSource of a real browser, in an empty page of the server's own origin."""

import asyncio
import json

from tests.browser.chromium import Browser, Page
from tests.torture.crew import PATIENCE
from tests.torture.parsers import NAMES, Heard, noted
from tests.torture.served import Server

LISTEN = """
window.heard = [];
window.isOver = false;
window.source = new EventSource("%s");
for (const name of %s) {
  window.source.addEventListener(name, (event) => {
    window.heard.push([event.type, event.lastEventId, event.data]);
    const isClosed = name === "session.completed" && JSON.parse(event.data).data.closed;
    if ("%s" === "closing" ? name === "closing" : isClosed) {
      window.isOver = true;
      window.source.close();
    }
  });
}
"""


async def signed_in(browser: Browser, server: Server) -> Page:
    """Open the server's link, which sets the cookie, and then an empty page of the same origin."""
    page = await browser.page()
    await page.go(server.url + server.card["sign_in"])
    await page.make(f"{server.url}/blank", "<!doctype html><title>blank</title>")
    await page.go(f"{server.url}/blank")
    return page


async def listen(page: Page, path: str, *, until: str) -> None:
    """Have the page hear a stream, coming back whenever it ends, until it or the session closes."""
    await page.run(LISTEN % (path, json.dumps(NAMES), until))


async def heard_in(page: Page) -> list[Heard]:
    """Wait until the page has heard the end, and return all it heard."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if await page.run("window.isOver"):
                return [noted(*each) for each in await page.run("window.heard")]
            await asyncio.sleep(0.1)
