"""A server with a page, and a real browser before it: signed in, watched, cleared for each test."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

from tests.torture.crew import PATIENCE, Crew
from tests.torture.served import Server

# How long a browser may take; a machine that is shared with others takes much of it.
PATIENCE_MS = 60_000
MODEL = {
    "display_name": "Scripted model",
    "context_window": 128_000,
    "prices": {"input": 300_000_000, "output": 1_500_000_000},
}
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@contextmanager
def browsing(program: str) -> Iterator[Browser]:
    """Run the system's browser without a window."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def staged(folder: Path, browser: Browser, **given: str) -> Iterator["Stage"]:
    """Run a server for as many tests as like it; a home takes space, so none is kept."""
    with Crew(folder) as crew:
        stage = Stage(crew, folder, browser, **given)
        stage.start()
        yield stage
        stage.close()
    shutil.rmtree(folder)


class Stage:
    """One server, those who ask it, and the windows before it."""

    def __init__(self, crew: Crew, folder: Path, browser: Browser, **given: str) -> None:
        """What is given goes into the server's environment; a repository is there to work in."""
        self.repository = folder / "work" / "sums"
        (self.repository / ".git").mkdir(parents=True)
        self._environment = {"AGENT_WORKSPACE_ROOT": str(folder / "work"), **given}
        self._browser = browser
        self.server = Server(crew, folder / "home", model=given.get("model", "offline:holdfast"))
        self.left: list[str] = []
        self.loaded: list[str] = []
        self.complaints: list[str] = []
        self._context: BrowserContext | None = None
        # What a browser that was signed in knows: a link for that works once.
        self._known: Any = None
        self._client = httpx.Client(timeout=PATIENCE, trust_env=False)

    def start(self) -> None:
        """Start the server, for the first time or once more."""
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            self.server.start()
        finally:
            os.environ.clear()
            os.environ.update(before)

    def window(self, path: str = "/", **options: Any) -> Page:
        """Open a window of the signed-in browser."""
        if self._context is None:
            self._context = self.guest(storage_state=self._known, **options)
        page = self._watched(self._context.new_page())
        if self._known is None:
            page.goto(self.server.url + self.server.card["sign_in"])
            self._known = self._context.storage_state()
        page.goto(self.server.url + path)
        return page

    def guest(self, **options: Any) -> BrowserContext:
        """Return a browser that nobody knows."""
        context = self._browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        return context

    def clear(self) -> None:
        """Close every window, and hold that nothing was asked of anybody else and nothing broke."""
        if self._context is not None:
            self._context.close()
            self._context = None
        seen, self.left, self.complaints, self.loaded = (self.left, self.complaints), [], [], []
        assert seen == ([], [])

    def close(self) -> None:
        """Ask nothing more."""
        self._client.close()

    def play(self, name: str, steps: Sequence[Mapping[str, Any]], **fields: Any) -> str:
        """Make an agent whose model plays these steps, and return its slug."""
        script = self.repository.parent / f"{name}.json"
        script.write_text(json.dumps(steps))
        self.ask("POST", "/v1/models", {"provider": "scripted", "name": str(script), **MODEL})
        given = {"default_model_id": f"scripted:{script}", "grant": {"fs": "project"}}
        body = {"name": name, "system_prompt": "", **given, **fields}
        return str(self.ask("POST", "/v1/agents", body)["slug"])

    def begin(self, agent: str, text: str, **fields: Any) -> str:
        """Open a session, say the first words, and return its id."""
        session = str(self.ask("POST", f"/v1/agents/{agent}/sessions", fields)["id"])
        said = {"role": "user", "content": {"text": text}}
        self.ask("POST", f"/v1/sessions/{session}/messages", said)
        return session

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the server as a program does."""
        headers = {"authorization": f"Bearer {self.server.token}"}
        answer = self._client.request(method, self.server.url + path, json=body, headers=headers)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def _watched(self, page: Page) -> Page:
        own = urlsplit(self.server.url).netloc

        def asked(request: Request) -> None:
            if urlsplit(request.url).netloc != own:
                self.left.append(request.url)
            # All but documents and data, which the page asks for on purpose.
            elif request.resource_type not in ("document", "fetch", "eventsource"):
                self.loaded.append(request.url)

        page.on("request", asked)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "console",
            lambda told: (
                self.complaints.append(told.text) if "Content Security" in told.text else None
            ),
        )
        return page
