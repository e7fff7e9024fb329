"""What the clients wrote down themselves: every attempt before it is made, every answer after it.

One file per client, append-only and synced, so that it survives the client. The auditor believes
these files; nothing here knows Holdfast.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK = "ok"
# What clients may be told who get into each other's way, however the house dies under them.
ORDINARY = {
    OK,
    "id_reused",
    "session_closed",
    "session_has_forks",
    "session_not_found",
    "turn_running",
}


@dataclass(frozen=True)
class Attempt:
    """One request: what was asked with which key, and what was answered, if anything was."""

    client: str
    number: int
    verb: str
    session: str
    key: str
    body: str
    outcome: str | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def acknowledged(self) -> bool:
        """Tell whether the client was told that it is done."""
        return self.outcome == OK


def digest(text: str | bytes) -> str:
    """Return the hash under which a body is written down."""
    hashed = hashlib.sha256()
    # In small pieces: a client that starves Holdfast must not starve before it.
    for start in range(0, len(text), 4096):
        piece = text[start : start + 4096]
        hashed.update(piece.encode() if isinstance(piece, str) else piece)
    return hashed.hexdigest()


NO_USAGE = dict.fromkeys(("input", "output", "cache_read", "cache_write", "reasoning"), 0)
# What is left out of an event when it says nothing.
UNSAID: dict[str, dict[str, Any]] = {
    "step.started": {"model": "", "bound": 0},
    "step.ended": {"message_id": None, "usage": None, "microcents": 0, "priced": False},
    "turn.ended": {
        "usage": {},
        "microcents": 0,
        "priced": True,
        "more_turns": False,
        "estimated": False,
        "failure": None,
    },
}


def meant(payload: bytes) -> str:
    """Return the hash of what an event says: the same whether or not it says what goes unsaid."""
    body = json.loads(payload)
    if body.get("type") in UNSAID:
        body = UNSAID[body["type"]] | body
        if body.get("usage") is not None:
            body["usage"] = NO_USAGE | body["usage"]
    return digest(json.dumps(body, sort_keys=True))


class Record:
    """A client's own file; a line is on disk before the method returns, unless nobody dies."""

    def __init__(self, path: Path, *, synced: bool = True) -> None:
        self._synced = synced
        self._client = path.stem
        # Not how many: one for which there was no memory has a number and no line.
        used = (line["n"] for line in read_lines([path]) if "verb" in line)
        self._number = max(used, default=0)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)

    def attempt(self, verb: str, session: str, key: str, body: str = "") -> int:
        """Write down what is about to be asked; return its number."""
        self._number += 1
        self.note(n=self._number, verb=verb, session=session, key=key, body=digest(body))
        return self._number

    def answer(self, number: int, outcome: str, **answer: Any) -> None:
        """Write down what came back."""
        self.note(n=number, outcome=outcome, answer=answer)

    def note(self, **line: Any) -> None:
        """Write any line, for what is neither an attempt nor an answer."""
        line |= {"client": self._client, "at": time.time_ns()}
        os.write(self._file, json.dumps(line).encode() + b"\n")
        if self._synced:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read_lines(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield every whole line of the files; a line cut off by a kill was never written."""
    for path in paths:
        if not path.exists():
            continue
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)


def read_attempts(paths: Iterable[Path]) -> list[Attempt]:
    """Return every attempt of the files with its answer."""
    attempts: dict[tuple[str, int], dict[str, Any]] = {}
    for line in read_lines(paths):
        if "verb" in line:
            attempts[line["client"], line["n"]] = line
        elif "outcome" in line:
            attempts[line["client"], line["n"]] |= {
                "outcome": line["outcome"],
                "answer": line["answer"],
            }
    return [
        Attempt(
            client=line["client"],
            number=line["n"],
            verb=line["verb"],
            session=line["session"],
            key=line["key"],
            body=line["body"],
            outcome=line.get("outcome"),
            answer=line.get("answer", {}),
        )
        for line in attempts.values()
    ]
