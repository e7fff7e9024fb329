"""Programs of others that drive Holdfast's MCP server: what they take for one, is one."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from tests.interop.bearer import Door, opened
from tests.interop.cases import Result
from tests.interop.installing import command_of, node_for
from tests.interop.programs import CONFORMANCE, INSPECTOR, Package
from tests.mcp.test_sdk import CALLS
from tests.mcp.test_tools import PROMISED

Heard = Callable[[Result], None]

_ENDED: Final = re.compile(
    r"^[✓✗] (?P<name>[\w-]+): (?P<passed>\d+) passed, (?P<failed>\d+) failed"
)
TOLD: Final = "abc123"
NAMED: Final = "testValue1-testValue2"
# The suite knows things by the names of its own example server. Where ours does the same, it is
# led there, and what our server answers is what is judged.
INSTEAD: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("tools/call", "test_simple_text"): {
        "name": "restore_checkpoint",
        "arguments": {"session_id": TOLD, "name": "half way"},
    },
    ("tools/call", "test_error_handling"): {
        "name": "restore_checkpoint",
        "arguments": {"session_id": TOLD, "name": "nowhere"},
    },
    ("resources/read", "test://static-text"): {"uri": f"holdfast://history/{TOLD}"},
    ("resources/read", "test://template/123/data"): {"uri": f"holdfast://history/{TOLD}"},
    ("prompts/get", "test_simple_prompt"): {"name": "settle_unknown_calls"},
    ("prompts/get", "test_prompt_with_arguments"): {
        "name": "continue_session",
        "arguments": {"session_id": NAMED},
    },
    ("prompts/get", "test_prompt_with_embedded_resource"): {
        "name": "continue_session",
        "arguments": {"session_id": TOLD},
    },
}
_BYTES: Final = "our tools, resources and prompts are text, and hold no pictures, sounds or files"
_NO_WAY_BACK: Final = "our tools end at once: they ask, log and tell nothing on the way"
_NO_SESSION: Final = "nothing is kept between messages (decision 0021): no levels, no subscriptions"
_SCHEMA: Final = "it looks for a schema of the suite's own; those of ours are judged in `make test`"
NOT_APPLICABLE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("tools-call-image", "tools-call-audio", "tools-call-embedded-resource"),
            *("tools-call-mixed-content", "resources-read-binary", "prompts-get-with-image"),
        ),
        _BYTES,
    ),
    **dict.fromkeys(
        (
            *("tools-call-with-logging", "tools-call-with-progress", "tools-call-sampling"),
            *("tools-call-elicitation", "elicitation-sep1034-defaults"),
            "elicitation-sep1330-enums",
        ),
        _NO_WAY_BACK,
    ),
    **dict.fromkeys(
        (
            *("logging-set-level", "resources-subscribe", "resources-unsubscribe"),
            # Both look for a session of the transport, and find none.
            *("server-sse-polling", "server-sse-multiple-streams"),
        ),
        _NO_SESSION,
    ),
    "json-schema-2020-12": _SCHEMA,
}


@dataclass(frozen=True)
class Place:
    """Where a judge stands: its folder, our command, and what both find around them."""

    folder: Path
    holdfast: Path
    environment: Mapping[str, str]

    def ran(self, package: Package, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        node = node_for(package)
        path = os.pathsep.join([str(node), self.environment["PATH"]])
        return subprocess.run(
            [str(node / "node"), str(command_of(package).resolve()), *words],
            cwd=self.folder,
            env={**self.environment, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=240,
            check=False,
        )

    @contextmanager
    def served(self, *words: str) -> Iterator[tuple[str, str]]:
        """Run the server until the block is left; yield where it is and what opens it."""
        home = Path(self.environment["HOLDFAST_HOME"])
        with subprocess.Popen(
            [str(self.holdfast), "serve", "--port", "0", "--json", *words],
            cwd=self.folder,
            env=dict(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                url = json.loads(process.stdout.readline())["url"]
                yield url, (home / "token").read_text().strip()
            finally:
                process.terminate()


def with_inspector(place: Place, heard: Heard) -> None:
    """List everything and call every tool, over both transports; each in a process of its own."""
    over_pipes = [str(place.holdfast), "mcp"]
    _inspect(place, heard, "pipes", over_pipes)
    with place.served() as (url, secret):
        _inspect(
            place, heard, "http", [f"{url}/mcp", "--header", f"Authorization: Bearer {secret}"]
        )


def _inspect(place: Place, heard: Heard, case: str, target: list[str]) -> None:
    started, faults = time.monotonic(), []

    def asked(*words: str) -> subprocess.CompletedProcess[str]:
        return place.ran(INSPECTOR, "--cli", *target, *words)

    listed = asked("--method", "tools/list", "--strict")
    if listed.returncode != 0 or {each["name"] for each in _json(listed)["tools"]} != PROMISED:
        faults.append(f"tools/list: {listed.stderr[-300:]}")
    for name, arguments, refusal in CALLS:
        told = json.dumps(arguments)
        done = asked("--method", "tools/call", "--tool-name", name, "--tool-args-json", told)
        found = _json(done).get("structuredContent", {}).get("error")
        if found != refusal:
            faults.append(f"{name}: {found} {done.stderr[-200:]}")
    for method in ("resources/list", "resources/templates/list", "prompts/list"):
        done = asked("--method", method)
        faults += [] if done.returncode == 0 else [f"{method}: {done.stderr[-200:]}"]
    told = "; ".join(faults) or f"{len(CALLS)} calls"
    state = "failed" if faults else "passed"
    heard(Result(case, state, told, time.monotonic() - started))


def with_conformance(place: Place, heard: Heard) -> None:
    """Let the protocol's own suite judge; what is not ours to answer is told and not counted."""
    door = Door(INSTEAD)
    started = time.monotonic()
    with place.served("--name", door.name) as (url, secret), opened(door, url, secret):
        for session in (TOLD, NAMED):
            _tell(url, secret, session)
        done = place.ran(
            CONFORMANCE, "server", "--url", f"http://{door.name}/mcp", "--suite", "all"
        )
    ended = [found for line in done.stdout.splitlines() if (found := _ENDED.match(line))]
    for each in ended:
        name, passed, failed = each["name"], int(each["passed"]), int(each["failed"])
        if name in NOT_APPLICABLE:
            heard(Result(name, "not tried", NOT_APPLICABLE[name]))
            continue
        state = "passed" if passed and not failed else "failed"
        heard(Result(name, state, f"{passed} checks, {failed} failed"))
    if not ended:
        seconds = time.monotonic() - started
        heard(Result("suite", "failed", (done.stderr or done.stdout)[-500:], seconds))


def _tell(url: str, secret: str, session: str) -> None:
    """Submit what there is to be asked for."""
    claim = {
        "session_id": session,
        "actions": [{"type": "work", "result": "success"}],
        "checkpoints": [{"name": "half way", "timestamp": "2025-12-31", "state": {"done": 1}}],
        "started_at": "2025-12-31",
    }
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    request = Request(f"{url}/v1/history", data=json.dumps(claim).encode(), headers=headers)
    with urlopen(request, timeout=60) as answer:
        assert answer.status == 201


def _json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"tools": []}
    return found
