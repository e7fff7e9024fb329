"""`read_output`: parts of what this session has kept, cut between characters."""

from typing import Any

import pytest

from holdfast.domain.messages import ResultStatus
from holdfast.ports.tools import CallOutcome
from tests.marks import each_case
from tests.tools.file_fixture import Workshop, result, told

pytestmark = pytest.mark.anyio


async def test_a_part_of_what_was_kept(shop: Workshop) -> None:
    handle = await shop.shelf.keep(b"0123456789")

    done = await shop.call("read_output", handle=handle, start=2, end=5)

    assert done == CallOutcome(
        status=ResultStatus.OK,
        result={"content": "234", "start": 2, "end": 5, "total_bytes": 10},
    )


@each_case(
    ("start", "end", "content", "span"),
    [
        (0, None, "aäß€😀z", (0, 13)),
        (0, 2, "a", (0, 1)),
        (2, 5, "ß", (3, 5)),
        (0, 7, "aäß", (0, 5)),
        (6, 13, "😀z", (8, 13)),
        (5, 11, "€", (5, 8)),
        (9, 13, "z", (12, 13)),
        (13, None, "", (13, 13)),
        (99, None, "", (99, 99)),
        (4, 4, "", (4, 4)),
    ],
)
async def test_no_character_is_cut_and_the_bytes_are_told(
    shop: Workshop, start: int, end: int | None, content: str, span: tuple[int, int]
) -> None:
    handle = await shop.shelf.keep("aäß€😀z".encode())

    found = result(await shop.call("read_output", handle=handle, start=start, end=end))

    assert (found["content"], (found["start"], found["end"])) == (content, span)


async def test_going_on_from_the_end_reads_everything(shop: Workshop) -> None:
    text = "aäß€😀" * 10_000
    handle = await shop.shelf.keep(text.encode())
    parts, at = [], 0

    while True:
        part: Any = result(await shop.call("read_output", handle=handle, start=at))
        assert len(part["content"].encode()) <= 16 << 10
        parts.append(part["content"])
        at = part["end"]
        if at == part["total_bytes"]:
            break

    assert "".join(parts) == text
    assert len(parts) == 8


async def test_what_is_no_text_is_replaced(shop: Workshop) -> None:
    handle = await shop.shelf.keep(b"\x80\x80a\0\xff")

    found = result(await shop.call("read_output", handle=handle))

    assert found["content"] == "\ufffd\ufffda\ufffd\ufffd"


@each_case("handle", ["media://0", "other", "../../x"])
async def test_what_this_session_has_not_kept_is_refused(shop: Workshop, handle: str) -> None:
    assert told(await shop.call("read_output", handle=handle)) == ("denied", "not_granted")


@each_case("span", [{"start": 2, "end": 1}, {"start": -1}, {"end": 1 << 64}])
async def test_a_part_that_cannot_be_is_no_argument(shop: Workshop, span: dict[str, int]) -> None:
    done = await shop.plan("read_output", handle="media://0", **span)

    assert told(done) == ("error", "invalid_arguments")
