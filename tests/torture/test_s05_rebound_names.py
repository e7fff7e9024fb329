"""S05: a name that led elsewhere leads to us now; what its page asks for is refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import browsing, require_chromium
from tests.marks import proves
from tests.torture.callers import Caller
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.served import Server

pytestmark = pytest.mark.slow

# The page came from outside; from now on its name means this machine, by one of its addresses.
ADDRESSES = {
    "one.rebound.test": "127.0.0.1",
    "two.rebound.test": "0.0.0.0",
    "six.rebound.test": "[::1]",
}
RESOLVE = "--host-resolver-rules=" + ",".join(f"MAP {n} {a}" for n, a in ADDRESSES.items())
# Everything is of the page's own origin now, so the browser itself forbids nothing.
TRY = """
(async () => {
  const tries = [];
  const note = (what, status, text) => tries.push([what, status, text.slice(0, 100)]);
  for (const [method, path, body] of %s) {
    try {
      const headers = { "content-type": "application/json" };
      const answer = await fetch(path, { method, body, headers, credentials: "include" });
      note(`${method} ${path}`, answer.status, await answer.text());
    } catch (error) { note(`${method} ${path}`, 0, String(error)); }
  }
  await new Promise((done) => {
    const source = new EventSource("%s");
    source.onopen = () => { note("stream", 200, "opened"); done(); };
    source.onerror = () => { note("stream", 0, "refused"); source.close(); done(); };
  });
  await new Promise((done) => {
    const socket = new WebSocket(`ws://${location.host}/v1/sessions`);
    socket.onopen = () => { note("socket", 200, "opened"); done(); };
    socket.onerror = () => { note("socket", 0, "refused"); done(); };
  });
  return tries;
})()
"""


@proves("S05")
def test_a_rebound_name_gets_nothing(tmp_path: Path, crew: Crew, sized: Sized, tell: Tell) -> None:
    program = require_chromium("S05")
    rounds = sized(test=1, torture=5, release=10)

    tries = asyncio.run(rebind(crew, tmp_path, program, rounds=rounds))

    tell(f"{len(tries)} requests under {len(ADDRESSES)} rebound names, 0 successes")
    assert successes(tries) == []
    # Refused by us, and not by a browser that could not reach us.
    assert len([each for each in tries if each[1] == 400]) >= 10 * rounds
    assert {"invalid_host" in each[2] for each in tries if each[1] == 400} == {True}


@proves("S05")
def test_a_server_that_answers_to_the_name_is_found(tmp_path: Path, crew: Crew) -> None:
    program = require_chromium("S05")

    tries = asyncio.run(rebind(crew, tmp_path, program, rounds=1, names=tuple(ADDRESSES)))

    assert successes(tries) != []


async def rebind(
    crew: Crew, folder: Path, program: str, *, rounds: int, names: tuple[str, ...] = ()
) -> list[list[Any]]:
    """Load a page from elsewhere, and have it ask under its own name, which is ours by now."""
    tries: list[list[Any]] = []
    for host in ("127.0.0.1", "::1"):
        server = Server(crew, folder / "home")
        server.start("--host", host, *(word for name in names for word in ("--name", name)))
        async with browsing(program, folder / f"profile{len(host)}", RESOLVE) as browser:
            session = await a_session(server, host)
            for name, address in ADDRESSES.items():
                if (":" in address) != (":" in host):
                    continue
                page = await browser.page()
                home = f"http://{name}:{server.port}/outside"
                await page.make(home, "<!doctype html><title>outside</title>")
                await page.go(home)
                for _ in range(rounds):
                    tries += await page.run(TRY % (json.dumps(asked(session)), events(session)))
        server.kill()
    return tries


def asked(session: str) -> list[tuple[str, str, str | None]]:
    """Return what the page asks for."""
    base = f"/v1/sessions/{session}"
    message = json.dumps({"role": "user", "content": {"text": "Delete everything."}})
    return [
        ("GET", "/", None),
        ("GET", "/healthz", None),
        ("GET", "/openapi.json", None),
        ("GET", "/sign-in?code=hf_x", None),
        ("GET", "/v1/sessions", None),
        ("GET", base, None),
        ("GET", f"{base}/messages", None),
        ("POST", f"{base}/messages", message),
        ("POST", "/v1/agents", json.dumps({"name": "Theirs", "system_prompt": "x"})),
        ("DELETE", base, None),
    ]


def events(session: str) -> str:
    """Return where the session's stream is."""
    return f"/v1/sessions/{session}/events"


async def a_session(server: Server, host: str) -> str:
    """Open a session that there is something to take from."""
    if ":" in host:
        server.url = f"http://[{host}]:{server.port}"
    async with Caller(server) as caller:
        made = await caller.sure("POST", "/v1/agents/holdfast/sessions", {})
    return str(made["id"])


def successes(tries: list[list[Any]]) -> list[list[Any]]:
    """Return what was answered with anything but a refusal."""
    return [each for each in tries if 200 <= each[1] < 400]
