"""The scripted agent, ready to be started: see `playing.py` for what a script can say."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.acp.client.agent_command import AgentStart

PEER = Path(__file__).with_name("peer.py")
PATIENCE = 30.0


class Peer:
    """A script in a folder, the command that plays it, and the log of what it saw."""

    def __init__(self, folder: Path, **script: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log_file = folder / "peer-log.jsonl"
        self.script_file = folder / "peer-script.json"
        self.write(**script)

    def write(self, **script: Any) -> None:
        """Change the script; a process that runs keeps the one it has."""
        self.script_file.write_text(json.dumps({"log": str(self.log_file)} | script), "utf-8")

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command: a program and its arguments."""
        return (sys.executable, "-I", "-S", str(PEER), str(self.script_file))

    def start(self, mark: str = "", **more: Any) -> AgentStart:
        """Return what to start."""
        environment = {"PATH": os.environ["PATH"], "HOLDFAST_SESSION_ID": mark or self.folder.name}
        given = {"argv": self.argv, "folder": str(self.folder), "environment": environment}
        return AgentStart(**(given | more))

    def log(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return what was logged, or only one kind of it."""
        if not self.log_file.exists():
            return []
        # The last line may be half written.
        lines = self.log_file.read_text("utf-8").split("\n")[:-1]
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [each for each in entries if event in (None, each["event"])]

    def got(self, method: str | None = None) -> list[dict[str, Any]]:
        """Return the messages it received, or only those of one method."""
        messages = [each["message"] for each in self.log("got") if "message" in each]
        return [each for each in messages if method in (None, each.get("method"))]

    def answers(self) -> dict[str, Any]:
        """Return the replies to what it asked, by name."""
        return {each["name"]: each["message"] for each in self.log("answer")}

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait, without the loop, until something was logged, and return it."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for each in self.log(event):
                if fields.items() <= each.items():
                    return each
            time.sleep(0.01)
        raise TimeoutError(f"no {event} {fields}: {self.log()}")
