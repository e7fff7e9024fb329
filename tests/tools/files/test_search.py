"""`find_text`: lines that match, in a fixed order, within a fixed effort."""

import asyncio
import os
import random
from typing import Any

import pytest

from holdfast.domain.messages import ResultStatus
from holdfast.ports.tools import CallOutcome
from tests.marks import each_case
from tests.tools.file_fixture import Workshop, result, told

pytestmark = pytest.mark.anyio

# Many places of the pattern fit at every place of such a text.
HARD = "([ab]{0,30}a){0,30}z"


def hard_text(lines: int) -> str:
    luck = random.Random(1)
    return "".join("".join(luck.choices("ab", k=60_000)) + "\n" for _ in range(lines))


async def lines(shop: Workshop, pattern: str, **arguments: Any) -> list[tuple[str, int]]:
    found = result(await shop.call("find_text", pattern=pattern, **arguments))
    return [(each["path"], each["line"]) for each in found["matches"]]


async def test_matches_come_with_path_line_and_text(shop: Workshop) -> None:
    shop.put("b.txt", "no\nneedle b\n")
    shop.put("a/a.txt", "a needle\r\n\r\nneedles\r\n")

    done = await shop.call("find_text", pattern="need.e")

    assert done == CallOutcome(
        status=ResultStatus.OK,
        result={
            "matches": [
                {"path": "b.txt", "line": 2, "text": "needle b"},
                {"path": "a/a.txt", "line": 1, "text": "a needle"},
                {"path": "a/a.txt", "line": 3, "text": "needles"},
            ],
            "truncated": False,
            "withheld": 0,
        },
    )


@each_case(
    ("pattern", "found"),
    [
        ("^b", [2]),
        ("a$", [1]),
        ("(?i)B", [2, 3]),
        (r"\Ab", [2]),
        (r"a\z", [1]),
        ("(?-m)^b", [2]),
        ("^$", [4]),
        ("a|c", [1, 3]),
        (r"\bb\b", [2]),
        ("ü", [5]),
        (r"\pL\PN$", [1, 3, 5]),
        ("b\nB", []),
    ],
)
async def test_a_pattern_sees_one_line_at_a_time(
    shop: Workshop, pattern: str, found: list[int]
) -> None:
    shop.put("t.txt", "xa\nb\nBc\n\nfür\n")

    assert [line for _, line in await lines(shop, pattern)] == found


@each_case("pattern", ["(", "a**", r"(a)\1", "(?=a)", "a{2000}", "[[:no:]]"])
async def test_what_is_no_pattern_is_no_argument(shop: Workshop, pattern: str) -> None:
    done = await shop.plan("find_text", pattern=pattern)

    assert told(done) == ("error", "invalid_arguments")


async def test_a_file_can_be_searched_alone(shop: Workshop) -> None:
    shop.put("a.txt", "x\n")
    shop.put("b.txt", "x\n")

    assert await lines(shop, "x", path="b.txt") == [("b.txt", 1)]


async def test_a_glob_chooses_the_files(shop: Workshop) -> None:
    for path in ("a.py", "b.txt", "sub/c.py"):
        shop.put(path, "x\n")

    assert await lines(shop, "x", glob="*.py") == [("a.py", 1), ("sub/c.py", 1)]
    assert await lines(shop, "x", path="sub", glob="c.*") == [("sub/c.py", 1)]


async def test_no_more_than_the_limit_and_it_is_said(shop: Workshop) -> None:
    shop.put("a.txt", "x\n" * 3)

    at_limit = result(await shop.call("find_text", pattern="x", limit=3))
    beyond = result(await shop.call("find_text", pattern="x", limit=2))

    assert (len(at_limit["matches"]), at_limit["truncated"]) == (3, False)
    assert (len(beyond["matches"]), beyond["truncated"]) == (2, True)
    assert told(await shop.plan("find_text", pattern="x", limit=501)) == (
        "error",
        "invalid_arguments",
    )


async def test_protected_files_are_counted_and_not_searched(shop: Workshop) -> None:
    shop.put(".env", "x=1\n")
    shop.put(".aws/credentials", "x\n")
    shop.put("k", "x\n-----BEGIN PRIVATE KEY-----\n")
    shop.put("a.txt", "x\n")

    found = result(await shop.call("find_text", pattern="x"))

    assert [each["path"] for each in found["matches"]] == ["a.txt"]
    assert found["withheld"] == 3
    for path in (".env", ".aws", "k"):
        done = await shop.plan("find_text", pattern="x", path=path)
        assert told(done) == ("denied", "protected_path")


async def test_binary_files_links_and_gits_own_folder_are_passed_over(shop: Workshop) -> None:
    shop.put("a.bin", b"x\0")
    shop.put(".git/logs/HEAD", "x\n")
    shop.put("sub/.git/logs/HEAD", "x\n")
    shop.put("real.txt", "x\n")
    (shop.inside / "link.txt").symlink_to("real.txt")
    os.mkfifo(shop.inside / "pipe")

    found = result(await shop.call("find_text", pattern="x"))

    assert [each["path"] for each in found["matches"]] == ["real.txt"]
    assert (found["truncated"], found["withheld"]) == (False, 0)


async def test_a_file_that_is_too_large_makes_the_answer_incomplete(shop: Workshop) -> None:
    os.truncate(shop.put("large"), 9 << 20)
    shop.put("small", "x\n")

    found = result(await shop.call("find_text", pattern="x"))

    assert ([each["path"] for each in found["matches"]], found["truncated"]) == (["small"], True)
    done = await shop.call("find_text", pattern="x", path="large")
    assert told(done) == ("error", "too_large")


async def test_lines_are_counted_across_blocks_and_long_lines_are_cut(shop: Workshop) -> None:
    text = "".join(f"{'y' * 99}\n" for _ in range(2000)) + "z" * 70_000 + "tail\nneedle\n"
    shop.put("a.txt", text)

    assert await lines(shop, "needle") == [("a.txt", 2002)]
    assert await lines(shop, "^z") == [("a.txt", 2001)]
    assert await lines(shop, "tail") == []
    found = result(await shop.call("find_text", pattern="^z"))
    assert (found["matches"][0]["text"], found["truncated"]) == ("z" * 300, True)


async def test_text_that_is_no_utf_8_is_shown_with_replacements(shop: Workshop) -> None:
    shop.put("a.txt", b"gr\xfcn \xff" + b"x" * 9000 + b"\0\nneedle \xff\0\n")

    found = result(await shop.call("find_text", pattern="needle"))

    assert found["matches"] == [{"path": "a.txt", "line": 2, "text": "needle \ufffd\ufffd"}]


async def test_a_search_is_bounded_by_files_and_by_bytes(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        shop.put(f"{number}.txt", "x\n")

    for name, most in (("_FILES_MOST", 3), ("_BYTES_MOST", 5)):
        with monkeypatch.context() as patch:
            patch.setattr(f"holdfast.tools.files.search.{name}", most)
            found = result(await shop.call("find_text", pattern="x"))
            assert (len(found["matches"]), found["truncated"]) == (3, True), name


async def test_a_pattern_that_is_slow_everywhere_ends_in_time(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.files.search._SECONDS_MOST", 0.2)
    shop.put("a.txt", hard_text(8))

    async with asyncio.timeout(10):
        found = result(await shop.call("find_text", pattern=HARD))

    assert (found["matches"], found["truncated"]) == ([], True)


async def test_a_cancelled_search_is_over_when_it_says_so(shop: Workshop) -> None:
    shop.put("a.txt", hard_text(8))
    before = len(os.listdir("/proc/self/fd"))

    task = asyncio.ensure_future(shop.call("find_text", pattern=HARD))
    await asyncio.wait([task], timeout=0.2)
    assert not task.done()
    task.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await task

    assert len(os.listdir("/proc/self/fd")) == before
