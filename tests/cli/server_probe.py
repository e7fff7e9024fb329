"""A running server seen from outside: what it says of itself, its answers and its processes."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.cli.processes import PATIENCE
from tests.cli.test_command import until_line


def card_of(server: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a server to say where it is, and return what it says of itself to all."""
    told: dict[str, Any] = json.loads(until_line(server))
    del told["sign_in"]
    return told


def got(url: str, *, secret: str = "") -> tuple[int, Any]:
    """Return the status and the document at an address."""
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    try:
        with urlopen(Request(url, headers=headers), timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def sent(url: str, body: Any, secret: str) -> Any:
    """Post a document and return the one that comes back."""
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=PATIENCE) as answer:
        return json.load(answer)


def processes_of(url: str) -> set[str]:
    """Ask until two processes have answered, and return how each begins its request ids."""
    found: set[str] = set()

    def ask() -> bool:
        with urlopen(f"{url}/healthz", timeout=PATIENCE) as answer:
            found.add(answer.headers["x-request-id"].partition("-")[0])
        return len(found) == 2

    wait_until(ask)
    return found


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in listed.split()]


def wait_until(condition: Callable[[], bool]) -> None:
    """Look until a condition holds; one that never does fails."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)
