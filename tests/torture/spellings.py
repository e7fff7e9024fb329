"""Ways to spell a path that leads out: built from parts, picked by luck, plus lists brought along.

What a spelling means is the tools' business; most of them are odd names of files inside. All aim at
the folders of an arena and at nothing of the machine, because broken tools would write there.
"""

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

# Read when this is imported, because tests run without the variables of the machine.
CORPORA = os.environ.get("HOLDFAST_CORPORA", "")

UPS = (
    *("../", "..//", ".././", "./../", "/../", "..\\", "..\\/", "\\..\\", "..;/", "..%2f", "..%5c"),
    *("%2e%2e/", "%2e%2e%2f", ".%2e/", "%2e./", "%252e%252e%252f", "%252e%252e/", "..%252f"),
    *("..%c0%af", "%c0%ae%c0%ae/", "%c0%ae%c0%ae%c0%af", "..%c1%9c", "%uff0e%uff0e/", "..%u2215"),
    *(
        "....//",
        "..././",
        ".../",
        "...//",
        "..\u2215",
        "..\u2044",
        "\u2024\u2024/",
        "\uff0e\uff0e/",
    ),
    *(
        "..\u200b/",
        "..\u202e/",
        "..\ufeff/",
        ".. /",
        "..\t/",
        "..\r/",
        "..\n/",
        "..\x7f/",
        "..\\x2f",
    ),
    *("..0x2f", "..%00/", "..\0/", "&period;&period;/", "\\u002e\\u002e/", "..\u0338/", ". ./"),
)
PREFIXES = (
    *("", "./", "a/", "a/b/", "a//b/", "a/./b/", "self/", "a/../", "link/", "deep/link/", "~/"),
    *("$PWD/", "file://", "file:", "C:\\", "\\\\?\\", "{inside}/", "{inside}/a/", "/{inside}/"),
    *("/proc/self/cwd/", "/proc/self/root/", "/dev/fd/3/", "no/", "a.txt/", "up/", "out/", " "),
)
TARGETS = (
    *(
        "{target}/canary.txt",
        "{target}",
        "{target}/",
        "{target}//canary.txt",
        "{target}/./canary.txt",
    ),
    *("{target}/canary.txt/", "{target}/canary.txt%00.png", "{target}/canary.txt\0.png"),
    *("{target}/sub/../canary.txt", "{target}/new.txt", "{target}/sub/new/deep.txt"),
    *(
        "{whole}/canary.txt",
        "{whole}",
        "{whole}/new.txt",
        "{target}\\canary.txt",
        "{TARGET}/canary.txt",
    ),
)
DEPTHS = (0, 1, 2, 3, 4, 6, 9, 16)

# Names that `furnish` makes links of, and what they point to.
LINKS = {
    "out": "{outside}",
    "link": "../outside",
    "deep/link": "../../outside",
    "up": "..",
    "deep/up": "../..",
    "root": "/",
    "self": ".",
    "file": "../outside/canary.txt",
    "absolute": "{outside}/canary.txt",
    "chain": "up/outside",
    "chained": "chain/canary.txt",
    "magic": "/proc/self/cwd",
    "magic-root": "/proc/self/root",
    "home": "../home",
    "new": "../outside/new.txt",
    "loop": "loop",
}
BY_LINK = (
    *("out/canary.txt", "link/canary.txt", "deep/link/canary.txt", "up/outside/canary.txt"),
    *("deep/up/outside/canary.txt", "root{outside}/canary.txt", "self/self/link/canary.txt"),
    *(
        "file",
        "absolute",
        "chain/canary.txt",
        "chained",
        "magic/x",
        "magic-root{outside}/canary.txt",
    ),
    *("a/../link/canary.txt", "link/../outside/canary.txt", "link/sub/../canary.txt", "loop/x"),
    *("out", "link", "up", "deep/up", "root", "chain", "out/new.txt", "link/sub/new.txt", "new"),
    *("home/canary.txt", "home", "up/home/canary.txt", "home/new.txt", "up/home", "root{home}"),
    *("{outside}", "{outside}/canary.txt", "{outside}/../outside/canary.txt", "{home}/canary.txt"),
    *("{inside}/../outside/canary.txt", "{inside}/link/canary.txt", "/..{outside}/canary.txt"),
    *("//{outside}/canary.txt", "/{outside}/canary.txt", "/./{outside}/./canary.txt", "..", "/"),
    *("../inside/../outside/canary.txt", "../inside/link/canary.txt", "/proc/self/environ"),
    *("/proc/self/root{outside}/canary.txt", "/proc/self/cwd", "/proc/1/root", "/dev/stdin"),
)


def furnish(inside: Path, words: dict[str, str]) -> None:
    """Put the links and some plain files into the folder that spellings start from."""
    for folder in ("a/b", "deep"):
        (inside / folder).mkdir(parents=True, exist_ok=True)
    for name in ("a.txt", "a/b/c.txt"):
        (inside / name).write_text("inside\n")
    for name, target in LINKS.items():
        (inside / name).symlink_to(target.format(**words))


def spellings(words: dict[str, str], count: int, luck: random.Random) -> list[str]:
    """Return so many different spellings; those by links and those brought along come first."""
    found = dict.fromkeys(each.format(**words) for each in BY_LINK)
    found.update(dict.fromkeys(filter(None, brought())))
    parts = list(itertools.product(PREFIXES, UPS, DEPTHS, TARGETS))
    luck.shuffle(parts)
    for prefix, up, depth, target in parts:
        if len(found) >= count:
            break
        folder = luck.choice(("outside", "home"))
        names = {"target": folder, "TARGET": folder.upper(), "whole": words[folder][1:]}
        found[prefix.format(**words) + up * depth + target.format(**names)] = None
    return list(found)


def brought() -> Iterator[str]:
    """Yield the lines of lists of traversals, where a folder of such lists is named."""
    if not CORPORA:
        return
    for path in sorted(Path(CORPORA).rglob("*")):
        if path.is_file() and "traversal" in str(path).lower():
            for line in path.read_bytes().decode("utf-8", "replace").splitlines():
                yield aimed(line)


def aimed(line: str) -> str:
    """Return a line of a list with its target in the arena instead of the machine."""
    for target in ("{FILE}", "etc/passwd", "etc/shadow", "etc%2fpasswd", "etc\\passwd"):
        line = line.replace(target, "outside/canary.txt")
    return line[:4096]
