"""The page in a real browser: a long session opened and scrolled, and a fast answer watched."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import BrowserContext, Page, sync_playwright

from bench.figures import Figure, below, measures, middle
from bench.servers import Server, holdfast_server
from holdfast import RunScope, open_holdfast
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.messages import Role, Text
from holdfast.domain.tokens import Scope as TokenScope

MESSAGES = 10_000
TIMES = 7
SCROLLS = 40
DELTAS = 1_000
OPEN_GOAL, TASK_GOAL = 300, 100
PATIENCE_MS = 60_000
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
ROW: Final = (
    "The reader takes the header away, so `rows[1:]` is **short by one**:\n\n"
    "```python\ndef total(rows):\n    return sum(row.amount for row in rows)\n```\n\n"
    "- The test fails without the change.\n- Nothing else calls it.\n"
)
# When the first row was drawn, and how long the longest piece of work took.
WATCH: Final = """
window.tasks = [0];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.tasks.push(entry.duration);
}).observe({ type: "longtask" });
new MutationObserver(() => {
  if (window.shown || !document.querySelector(".row .row-content")) return;
  window.shown = -1;
  requestAnimationFrame(() => setTimeout(() => (window.shown = performance.now())));
}).observe(document, { childList: true, subtree: true });
"""
SHOWN: Final = """new Promise((done) => {
  const look = () => (window.shown > 0 ? done(window.shown) : setTimeout(look, 5));
  look();
})"""


@measures("ui_open_10k_ms", "ui_scroll_longest_task_ms", "ui_stream_longest_task_ms")
def pages(folder: Path) -> dict[str, Figure]:
    """The server, the browser and the model share the machine, as they do at somebody's desk."""
    home = folder / "home"
    session_id = asyncio.run(_filled(home))
    with holdfast_server(home) as server, _signed_in(home, server) as context:
        opened = [_opened(context, server, session_id) for _ in range(TIMES)]
        return {
            "ui_open_10k_ms": below(middle(opened), "ms", OPEN_GOAL),
            "ui_scroll_longest_task_ms": below(_scrolled(context, server, session_id), "ms", 100),
            "ui_stream_longest_task_ms": below(_streamed(context, server, folder), "ms", TASK_GOAL),
        }


@contextmanager
def _signed_in(home: Path, server: Server) -> Iterator[BrowserContext]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise AssertionError("these figures need Chromium")
    # Before the browser, whose driver has a loop of its own running from here on.
    code = asyncio.run(_code(home))
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        context.new_page().goto(f"http://127.0.0.1:{server.port}/sign-in?code={code}")
        yield context
        browser.close()


async def _code(home: Path) -> str:
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        return await holdfast.tokens.sign_in_code(holdfast.owner, TokenScope.ADMIN)


async def _filled(home: Path) -> str:
    draft = MessageDraft(role=Role.ASSISTANT, parts=(Text(text=ROW),))
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        session = await holdfast.open()
        for _ in range(0, MESSAGES, 100):
            record = holdfast.messages.record
            await asyncio.gather(*(record(holdfast.owner, session.id, draft) for _ in range(100)))
    return session.id


def _page(context: BrowserContext, server: Server, session_id: str) -> Page:
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(f"http://127.0.0.1:{server.port}/sessions/{session_id}")
    page.evaluate(SHOWN)
    return page


def _opened(context: BrowserContext, server: Server, session_id: str) -> float:
    page = _page(context, server, session_id)
    shown = float(page.evaluate(SHOWN))
    page.close()
    return shown


def _scrolled(context: BrowserContext, server: Server, session_id: str) -> float:
    page = _page(context, server, session_id)
    page.locator(".transcript").hover()
    page.evaluate("window.tasks = [0]")
    for _ in range(SCROLLS):
        page.mouse.wheel(0, -1_500)
        page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    longest = float(page.evaluate("Math.max(...window.tasks)"))
    page.close()
    return longest


def _streamed(context: BrowserContext, server: Server, folder: Path) -> float:
    """Watch an answer of a thousand pieces, as large as pieces get, come as fast as it can."""
    script = folder / "fast.json"
    paragraph = "word by word and so on, " * 10 + "\n\n"
    script.write_text(json.dumps([{"text": paragraph * DELTAS, "chunks": DELTAS}]))
    base = f"http://127.0.0.1:{server.port}/v1"
    headers = {"authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=base, headers=headers, trust_env=False) as client:
        body: dict[str, Any] = {"model_id": f"scripted:{script}"}
        session_id = client.post("/agents/holdfast/sessions", json=body).json()["id"]
        said = {"role": "user", "content": {"text": "Go on."}}
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(f"http://127.0.0.1:{server.port}/sessions/{session_id}")
        page.get_by_text("live", exact=True).wait_for()
        page.evaluate("window.tasks = [0]")
        client.post(f"/sessions/{session_id}/messages", json=said)
        page.locator(".row.assistant:not(.streaming)").wait_for()
    return float(page.evaluate("Math.max(...window.tasks)"))
