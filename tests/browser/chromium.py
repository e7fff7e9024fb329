"""A real browser: Debian's Chromium without a window, spoken to through a pipe of its own protocol.

Installed when it is missing and this process may do that; otherwise the test that needs it says so.
"""

import asyncio
import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.marks import skip_row

PATIENCE: Final = 60.0
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
INSTALL: Final = ("apt-get", "install", "--yes", "--no-install-recommends", "chromium")
INSTALL_SECONDS: Final = 900
# Nothing that a test did not ask for, and no sandbox where root may have none.
FLAGS: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    # Its own guard of local addresses: what protects us must be ours.
    "--disable-features=LocalNetworkAccessChecks,PrivateNetworkAccessSendPreflights,HttpsUpgrades",
    "about:blank",
)
# Gives the browser its pipe as the two files that it expects.
_BECOME: Final = (
    "import os, sys\n"
    "os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)

Json = dict[str, Any]


def require_chromium(row: str) -> str:
    """Return the browser's program; leaves the row unproven where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with Path("/var/tmp/holdfast-chromium.lock").open("w") as lock:
            # Only one of several processes that run tests.
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = next(filter(None, map(shutil.which, NAMES)), None) or _installed()
    return found or skip_row(row, "Chromium (apt-get install chromium)")


def _installed() -> str | None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (INSTALL, ("apt-get", "update"), INSTALL):
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, env=environment, capture_output=True, timeout=INSTALL_SECONDS, check=False
            )
        if found := shutil.which("chromium"):
            return found
    return None


class Browser:
    """One running browser with a profile of its own."""

    def __init__(self, reader: asyncio.StreamReader, pipe: int) -> None:
        self._reader = reader
        self._pipe = pipe
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._pages: dict[str, Page] = {}

    async def listen(self) -> None:
        """Take what the browser says, until it ends."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                told = json.loads((await self._reader.readuntil(b"\0"))[:-1])
                if "id" in told:
                    self._waiting.pop(told["id"]).set_result(told)
                elif page := self._pages.get(told.get("sessionId", "")):
                    page.heard(told["method"], told["params"])

    async def ask(self, method: str, session: str | None = None, **given: Any) -> Json:
        """Have the browser do something and return what came of it."""
        number = next(self._numbers)
        message: Json = {"id": number, "method": method, "params": given}
        if session is not None:
            message["sessionId"] = session
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        os.write(self._pipe, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(PATIENCE):
            told = await future
        assert "error" not in told, (method, told)
        result: Json = told["result"]
        return result

    async def page(self) -> "Page":
        """Open an empty page."""
        target = await self.ask("Target.createTarget", url="about:blank")
        told = await self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[told["sessionId"]] = Page(self, told["sessionId"])
        await page.ask("Page.enable")
        return page


class Page:
    """One page of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._made: dict[str, str] = {}
        self._loaded = asyncio.Event()
        self._answering: set[asyncio.Task[Any]] = set()

    async def ask(self, method: str, **given: Any) -> Json:
        """Have something done in this page."""
        return await self._browser.ask(method, self._session, **given)

    async def make(self, url: str, html: str) -> None:
        """Answer for an address ourselves: the page is at home there, whoever else lives there."""
        self._made[url] = html
        patterns = [{"urlPattern": each} for each in self._made]
        await self.ask("Fetch.enable", patterns=patterns)

    async def go(self, url: str) -> None:
        """Open an address and wait until it is there."""
        self._loaded.clear()
        await self.ask("Page.navigate", url=url)
        async with asyncio.timeout(PATIENCE):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """Run a script in the page and return its value; a promise is waited for."""
        told = await self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def heard(self, method: str, told: Json) -> None:
        """Take what the browser says of this page."""
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Fetch.requestPaused":
            task = asyncio.ensure_future(self._answer(told))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, told: Json) -> None:
        body = base64.b64encode(self._made[told["request"]["url"]].encode()).decode()
        headers = [{"name": "content-type", "value": "text/html; charset=utf-8"}]
        await self.ask(
            "Fetch.fulfillRequest",
            requestId=told["requestId"],
            responseCode=200,
            responseHeaders=headers,
            body=body,
        )


@asynccontextmanager
async def browsing(program: str, profile: Path, *flags: str) -> AsyncIterator[Browser]:
    """Run a browser, and end it with everything it started."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    command = [program, f"--user-data-dir={profile}", *flags, *FLAGS]
    given = [str(their_in), str(their_out)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _BECOME, *given, *command),
        pass_fds=(their_in, their_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(their_in)
    os.close(their_out)
    reader = asyncio.StreamReader(limit=1 << 26)
    pipe = os.fdopen(our_in, "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    browser = Browser(reader, our_out)
    listening = asyncio.create_task(browser.listen())
    try:
        yield browser
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        await process.wait()
        await listening
        transport.close()
        os.close(our_out)
