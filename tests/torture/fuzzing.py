"""A small fuzzer: inputs bred from good ones, and whatever a reader raises that it should not."""

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# What has broken readers before: ends, signs, numbers at an edge, bytes that are no text.
CHUNKS: Final = (
    *(b"\x00", b"\n", b"\r\n", b"\n\n", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x80\xa8"),
    *(b'"', b"'", b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b":", b",", b"null"),
    *(b"true", b"-1", b"0", b"1e999", b"NaN", b"9223372036854775808", b"1" * 400, b"[" * 200),
    *(b"../", b"/", b"//", b"~", b"%00", b"%2e%2e", b"@", b"#", b"?", b"*", b"**", b"(?", b"[!"),
    *(
        b"data: ",
        b"id: 7",
        b"event: x",
        b"::1",
        b"127.1",
        b"\xef\xbb\xbf",
        b" ",
        b"\t",
        b"- ",
        b"&a",
    ),
)
LONGEST: Final = 4_096
POOL_MOST: Final = 512
FAULTS_MOST: Final = 5


@dataclass(frozen=True)
class Prey:
    """A reader of anything: good inputs to breed from, and how it says no."""

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...] = ()


def hunted(prey: Prey, luck: random.Random, count: int) -> tuple[int, list[str]]:
    """Feed so many inputs; return how many were taken, and the faults with what caused them."""
    pool = list(prey.seeds)
    taken = 0
    faults: list[str] = []
    for _ in range(count):
        given = bred(pool, luck)
        try:
            prey.read(given)
        except prey.refusals:
            continue
        except BaseException as error:  # noqa: BLE001 — each of them is what is looked for
            faults.append(f"{prey.name}: {given!r}: {traceback.format_exception_only(error)[-1]}")
            if len(faults) == FAULTS_MOST:
                break
            continue
        taken += 1
        # What was taken leads further than what was refused.
        if len(pool) < POOL_MOST:
            pool.append(given)
        else:
            pool[luck.randrange(len(prey.seeds), POOL_MOST)] = given
    return taken, faults


def bred(pool: list[bytes], luck: random.Random) -> bytes:
    """Return a child of one good input, or of two."""
    child = bytearray(pool[int(luck.random() * len(pool))])
    for _ in range(1 + int(luck.random() * 3)):
        at = int(luck.random() * (len(child) + 1))
        fate = luck.random()
        if fate < 0.3:
            child[at:at] = CHUNKS[int(luck.random() * len(CHUNKS))]
        elif fate < 0.5 and child:
            child[min(at, len(child) - 1)] = int(luck.random() * 256)
        elif fate < 0.7:
            del child[at : at + 1 + int(luck.random() * 8)]
        elif fate < 0.85:
            child[at:at] = child[at : at + int(luck.random() * 64)]
        else:
            other = pool[int(luck.random() * len(pool))]
            child[at:] = other[int(luck.random() * (len(other) + 1)) :]
    return bytes(child[:LONGEST])
