"""Torn tails: a log or a transcript as a crash leaves it, and what is wrong with what is read."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

TEARS = ("cut", "blank", "garbage")


def torn(whole: bytes, at: int, how: str, luck: random.Random) -> bytes:
    """Return a content whose end was never written: missing, NUL, or whatever lay there before."""
    missing = len(whole) - at
    match how:
        case "cut":
            return whole[:at]
        case "blank":
            return whole[:at] + bytes(missing)
        case _:
            return whole[:at] + luck.randbytes(missing)


@dataclass(frozen=True)
class Transcript:
    """A foreign transcript with one damage, and the records that it was made of."""

    name: str
    content: bytes
    records: tuple[str, ...]
    is_damaged: bool = True

    def whole(self) -> list[str]:
        """Return the records of which every byte is there."""
        text = self.content.decode("utf-8", "replace")
        return [record for record in self.records if record in text]


def transcript(luck: random.Random, count: int = 12) -> tuple[tuple[str, ...], bytes]:
    """Return records that are told apart by their numbers, and the file they make."""
    words = ("plain", "größe", "a\u2028b", "\u2029", "tab\\t", "🙂")
    records = tuple(
        json.dumps({"n": number, "text": luck.choice(words) * luck.randrange(1, 9)}, **_AS_IS)
        for number in range(count)
    )
    return records, "".join(f"{record}\n" for record in records).encode()


_AS_IS = {"ensure_ascii": False}


def damaged(luck: random.Random, cuts: int) -> list[Transcript]:
    """Return transcripts cut at bytes of their last three records, and damaged in other ways."""
    records, content = transcript(luck)
    tail = len("".join(f"{record}\n" for record in records[-3:]).encode())
    places = range(len(content) - tail, len(content))
    chosen = places if cuts >= tail else sorted(luck.sample(places, cuts))
    found = [Transcript(f"cut-{at}", content[:at], records) for at in chosen]
    for number in range(max(cuts // 10, 2)):
        at = luck.randrange(len(content) - tail, len(content))
        found.append(Transcript(f"blank-{number}", torn(content, at, "blank", luck), records))
        start = luck.randrange(len(content) // 2)
        hole = content[:start] + bytes(40) + content[start + 40 :]
        found.append(Transcript(f"hole-{number}", hole, records))
        again = content[-luck.randrange(2, tail) :]
        found.append(Transcript(f"doubled-{number}", content + again, records))
    windows = content.replace(b"\n", b"\r\n")
    return [
        *found,
        Transcript("whole", content, records, is_damaged=False),
        Transcript("windows", windows, records, is_damaged=False),
        Transcript("windows-cut", windows[:-1], records, is_damaged=False),
    ]


def faults_of(given: Transcript, lines: Sequence[str], *, torn: bool) -> list[str]:
    """Return what is wrong with the lines that were read of a transcript."""
    told = "\n".join(lines)
    found = [f"{each} is hidden" for each in given.whole() if each not in told]
    bad = [line for line in lines if not _is_record(line)]
    if len(bad) > given.is_damaged:
        found.append(f"one damage has cost {len(bad)} lines")
    is_torn = not given.content.endswith(b"\n") or bool(bad and lines[-1] == bad[-1])
    if torn != is_torn:
        found.append(f"its end is {'' if is_torn else 'not '}torn, and the opposite is told")
    return [f"{given.name}: {each}" for each in found]


def _is_record(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
