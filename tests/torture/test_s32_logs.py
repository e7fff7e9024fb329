"""S32: whatever is logged is one event on one line, of a size, and no conversation at `info`."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.logs import FIELD_LONGEST, MESSAGE_LONGEST, TRACE_LONGEST
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE

pytestmark = pytest.mark.slow

# Written by a program of its own, because stderr is what counts, and the runner has hands in it.
LOGGING = """
import json, logging, sys
from holdfast.cli.logs import configure

configure("debug")
log = logging.getLogger("holdfast.row")
for line in open(sys.argv[1], "rb"):
    attack = json.loads(line)
    try:
        raise ValueError(attack["text"])
    except ValueError:
        log.error(attack["format"], *attack["arguments"], extra={"fields": attack["fields"]})
        log.exception("%s", attack["text"])
"""
PIECES = (
    "\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\x00", "\x08",
    "\x1b[2K\x1b[1A", "\x1b]0;title\x07", "\x9b31m", "\u202e", "\u2066", "\ufeff", "\ud800",
    '{"level":"info","message":"forged"}', '"}\n{"level":"error"', "%s", "%(asctime)s", "%d",
    "{0.__class__}", "\\n", "\\u000a", "warning: forged", "x" * 300, "🙂", "\ufffe", "'", '"', "\\",
)  # fmt: skip
LINE_LARGEST = 12 * (MESSAGE_LONGEST + TRACE_LONGEST + 40 * FIELD_LONGEST)


@proves("S32")
def test_no_text_forges_a_line_and_no_event_outgrows_its_size(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    attacks = [attack(luck, number) for number in range(sized(quick=30, test=100, torture=100))]

    lines = logged(tmp_path, attacks)

    events = [json.loads(line) for line in lines]
    tell(f"{len(attacks)} attacks, {len(events)} lines, the longest {max(map(len, lines))} bytes")
    assert len(events) == 2 * len(attacks)
    assert {event["level"] for event in events} == {"error"}
    assert {event["logger"] for event in events} == {"holdfast.row"}
    assert all(line.isascii() and line.decode().isprintable() for line in lines)
    assert max(map(len, lines)) <= LINE_LARGEST


@proves("S32")
def test_a_plain_handler_would_be_forged(tmp_path: Path, luck: random.Random) -> None:
    attacks = [attack(luck, number) for number in range(20)]
    careless = LOGGING.replace(
        'configure("debug")', "logging.basicConfig(format='%(levelname)s: %(message)s')"
    )

    assert len(logged(tmp_path, attacks, careless)) > 2 * len(attacks)


@proves("S32")
def test_at_info_no_conversation_is_in_the_logs(tmp_path: Path) -> None:
    said, answered = "a-question-of-mine", "an-answer-of-its-own"
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": answered, "reasoning": answered}]))

    run = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "-v", "chat", said, "--model", f"scripted:{script}"],
        env=environment(tmp_path),
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )

    assert answered in run.stdout.decode()
    assert said not in run.stderr.decode()
    assert answered not in run.stderr.decode()


def attack(luck: random.Random, number: int) -> dict[str, Any]:
    """Return something to log that tries to be more than one line."""
    # The first are each piece by itself; then they are mixed.
    text = PIECES[number] if number < len(PIECES) else "".join(luck.choices(PIECES, k=6))
    if number % 10 == 9:
        text *= luck.randrange(1, 200_000 // len(text))
    return {
        "text": text,
        "format": luck.choice(["%s", "%d", "plain", text, "%s %s"]),
        "arguments": luck.choice([[], [text], [7], [text, text]]),
        "fields": {text: text, "level": text, "message": text, "n": number},
    }


def logged(folder: Path, attacks: list[dict[str, Any]], program: str = LOGGING) -> list[bytes]:
    """Return the lines that a program writes which logs the attacks."""
    file = folder / "attacks.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in attacks))
    run = subprocess.run(
        [sys.executable, "-c", program, str(file)],
        env=environment(folder) | {"PYTHONIOENCODING": "utf-8:backslashreplace"},
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    return run.stderr.splitlines()


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a program that finds Holdfast, and has a home of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return kept | {"HOLDFAST_HOME": str(folder / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
