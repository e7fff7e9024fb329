"""R46: YAML of every kind at agent and workflow files: read right, or refused at once."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ruamel.yaml import YAML

from holdfast.domain.errors import Invalid
from holdfast.parsing.agent_files import parse_agent
from holdfast.parsing.workflow_files import parse_workflow, write_workflow
from holdfast.parsing.yaml import WRITTEN_LARGEST, read_yaml, write_yaml
from tests.marks import proves
from tests.torture.bombs import bombs
from tests.torture.conftest import Sized, Tell
from tests.torture.talks import talks, workflow_of

pytestmark = pytest.mark.slow

CORPORA = os.environ.get("HOLDFAST_CORPORA")
SECONDS = 10.0
MEMORY = 250 << 20
SUITE = 351
# What may stand before a value, and no file of ours has.
HOSTILE: tuple[Callable[[str], str], ...] = (
    lambda value: f"&x {value}",
    lambda value: f"!!str {value}",
    lambda value: f"!mine {value}",
    lambda value: f"[&x {value}, *x]",
    lambda value: f"{{a: {value}, a: {value}}}",
    lambda value: f"{{<<: {{a: {value}}}}}",
    lambda value: f"{{1: {value}}}",
    lambda value: f"{{? [a] : {value}}}",
    lambda value: "[" * 70 + value + "]" * 70,
    lambda value: f"{value}\n--- 2",
    lambda value: f"{value}\n%",
    lambda value: '"\\ud800"',
    lambda value: "9" * 1_200,
)


@proves("R46")
def test_other_spellings_are_read_and_what_is_not_ours_is_refused(
    luck: random.Random, tell: Tell
) -> None:
    values = [a_value(luck, 3) for _ in range(SUITE - SUITE // 3)]
    spelled = [(value, other_spelling(value, luck)) for value in values]
    hostile = [spoiled(luck) for _ in range(SUITE // 3)]

    misread = [text for value, text in spelled if read_yaml(text) != value]
    taken = [text for text in hostile if is_taken(text)]

    tell(f"{len(spelled)} texts of another writer read, {len(hostile)} refused")
    assert (misread, taken) == ([], [])


@proves("R46")
def test_every_bomb_is_refused_at_once_at_both_doors(sized: Sized, tell: Tell) -> None:
    size = sized(test=2 << 10, torture=2 << 20)
    thrown = list(bombs(size))
    # A workflow that we wrote ourselves may be longer, and a bomb as long as that is thrown too.
    longer = list(bombs(sized(test=4 << 10, torture=WRITTEN_LARGEST)))
    before, longest, taken = peak(), 0.0, []
    doors = (parse_agent, parse_workflow)
    for number, (name, text) in enumerate([*thrown, *longer]):
        # In turn where time is short: behind both doors the same reader sits.
        for read in (doors[number % 2],) if sized(test=1, torture=2) == 1 else doors:
            began = time.monotonic()
            taken += [] if refuses(read, text) else [name]
            longest = max(longest, time.monotonic() - began)
    grown = peak() - before

    tell(f"{len(thrown)} bombs at 2 doors, at most {longest:.1f} s and {grown >> 20} MiB more")
    assert taken == []
    assert len(thrown) >= 50
    assert longest <= sized.within(SECONDS)
    assert grown <= MEMORY


@proves("R46")
def test_our_exports_are_the_same_to_other_readers(luck: random.Random, sized: Sized) -> None:
    other, strict = YAML(typ="safe", pure=True), yaml.CSafeLoader
    for talk in talks(luck, sized(test=5, torture=200)):
        workflow = workflow_of(talk)
        text = write_workflow(workflow)

        assert other.load(text) == workflow.document
        # The older version knows dates and other numbers; nothing of ours may be taken for one.
        assert yaml.load(text, Loader=strict) == workflow.document


@proves("R46")
def test_a_public_suite_is_read_or_refused_where_there_is_one(tell: Tell) -> None:
    files = sorted(Path(CORPORA).rglob("in.yaml")) if CORPORA else []
    for file in files:
        is_taken(file.read_text("utf-8", errors="surrogateescape"))

    tell(f"{len(files)} texts of a public suite" + ("" if files else ": HOLDFAST_CORPORA has none"))


@proves("R46")
def test_a_reader_without_limits_would_be_seen(luck: random.Random) -> None:
    lenient = [text for text in (spoiled(luck) for _ in range(60)) if is_taken_elsewhere(text)]
    program = (
        "import sys, yaml, resource\n"
        "def size(value): return 1 + sum(map(size, value)) if isinstance(value, list) else 1\n"
        "found = yaml.safe_load(sys.stdin)\n"
        "print(size(found['a5']))\n"
    )
    laughs = dict(bombs(100))["a billion laughs"]

    told = subprocess.run(
        [sys.executable, "-c", program], input=laughs, capture_output=True, text=True, check=True
    )

    assert len(lenient) > 10
    assert int(told.stdout) > 9**6


def a_value(luck: random.Random, depth: int) -> Any:
    """Return a value made of what JSON has."""
    words = ("yes", "12:30", "a: b", "- x", "", " ", "#", "é", "~", "e3", "two\nlines\n", "[", "'")
    kind = luck.randrange(6 if depth else 4)
    if kind == 4:
        return [a_value(luck, depth - 1) for _ in range(luck.randrange(4))]
    if kind == 5:
        keys = luck.sample(words, luck.randrange(4))
        return {key: a_value(luck, depth - 1) for key in keys}
    return luck.choice((luck.choice(words), luck.randrange(1000), luck.choice((True, None, 0.5))))


def other_spelling(value: Any, luck: random.Random) -> str:
    """Return a text of another writer, in one of its styles."""
    text = yaml.dump(
        value,
        Dumper=yaml.SafeDumper,
        default_style=luck.choice((None, None, '"', "'")) if isinstance(value, str) else None,
        default_flow_style=luck.choice((True, False, None)),
        indent=luck.choice((2, 4, 8)),
        width=luck.choice((20, 80, 10_000)),
        allow_unicode=luck.random() < 0.5,
        line_break=luck.choice(("\n", "\r\n")),
    )
    return f"# a comment\n---\n{text}" if luck.random() < 0.5 else text


def spoiled(luck: random.Random) -> str:
    """Return a text of ours with something that no file of ours may have."""
    spoil = luck.choice(HOSTILE)
    return f"first: 1\nsecond: {spoil(luck.choice(('x', '1', '[]')))}\n"


def is_taken(text: str) -> bool:
    """Tell whether our reader takes a text; every other error than its own is one."""
    try:
        # Half a character is read, and refused by the next who looks: it cannot be written.
        write_yaml(read_yaml(text))
    except ValueError:
        return False
    return True


def is_taken_elsewhere(text: str) -> bool:
    """Tell whether another reader takes a text."""
    try:
        yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return False
    return True


def refuses(read: Callable[..., object], text: str) -> bool:
    """Tell whether a door refuses a text as it should."""
    try:
        read(text, where="it")
    except Invalid:
        return True
    return False


def peak() -> int:
    """Return the most memory that this process has had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
