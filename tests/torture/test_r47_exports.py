"""R47: any session is exported, read and exported to the same bytes, wherever that is done."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.projection import project
from holdfast.parsing.workflow_files import parse_workflow, write_workflow
from holdfast.workflows.model import Workflow
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.strict import faults
from tests.torture.talks import Talk, digest, talks, workflow_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# Other letters, other clocks, other orders of sets: none of them may be seen in a file.
PLACES = (
    {"LC_ALL": "C", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "1", "PYTHONUTF8": "0"},
    {"LC_ALL": "tr_TR.UTF-8", "TZ": "America/St_Johns", "PYTHONHASHSEED": "2"},
    {"LC_ALL": "de_DE.ISO-8859-1", "TZ": "UTC", "PYTHONHASHSEED": "3", "HOLDFAST_MODEL": "a:b"},
)


@proves("R47")
def test_every_session_comes_back_byte_for_byte(
    luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=25, test=100, torture=2_000, release=20_000)
    wrong = [name for talk in talks(luck, count) for name in differences(talk, write_workflow)]

    tell(f"{count} sessions exported, read and exported again")
    assert wrong == []


@proves("R47")
def test_the_bytes_are_the_same_in_every_place(
    luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(test=20, torture=500, release=5_000)
    seed = luck.randrange(1 << 30)
    here = digest(talks(random.Random(seed), count))

    there = {digest_in(place, seed, count) for place in PLACES}

    tell(f"{count} sessions in {len(PLACES) + 1} locales and time zones")
    assert there == {here}


@proves("R47")
def test_every_prefix_is_a_request_that_a_provider_takes(
    luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(test=30, torture=500, release=5_000)
    prefixes, wrong = 0, []
    for _, rows in talks(luck, count):
        for length in range(1, len(rows) + 1):
            prefixes += 1
            turn = max(row.turn for row in rows[:length]) or 1
            wrong += faults(project(rows[:length], turn=turn))

    tell(f"{prefixes} prefixes of {count} sessions")
    assert wrong == []


@proves("R47")
def test_what_is_not_kept_would_be_seen(luck: random.Random) -> None:
    def remarking(workflow: Workflow) -> str:
        return f"{write_workflow(workflow)}# {workflow.id}\n"

    (found,) = talks(luck, 1)

    assert differences(found, remarking) == [f"{found[0].title!r}: the bytes"]
    assert digest([found]) != digest([found], remarking)


def differences(talk: Talk, write: object) -> list[str]:
    """Return what is not the same when a workflow was read again."""
    assert callable(write)
    workflow = workflow_of(talk)
    text = write(workflow)
    read = parse_workflow(text, where="it")
    session, rows = talk
    shuffled = workflow_of((session, tuple(reversed(rows))))
    told = {
        "the value": read == workflow,
        "the bytes": write_workflow(read) == text,
        "the order of rows": write(shuffled) == text,
    }
    return [f"{session.title!r}: {what}" for what, is_same in told.items() if not is_same]


def digest_in(place: dict[str, str], seed: int, count: int) -> str:
    """Return what the same sessions come to in another locale and time zone."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.torture.talks", str(seed), str(count)],
        env={**os.environ, **place},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()
