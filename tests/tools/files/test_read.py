"""`read_file`: text by lines, within limits, and nothing that is not a file."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect, FsTier, ToolClass
from holdfast.ports.tools import CallOutcome, PlannedCall
from holdfast.tools.files.openat import probe_kernel
from holdfast.tools.files.read import modified_at
from tests.marks import each_case
from tests.tools.file_fixture import Workshop, result, told

pytestmark = pytest.mark.anyio

MEBIBYTE = 1 << 20


async def read(shop: Workshop, path: str, **arguments: Any) -> Any:
    return result(await shop.call("read_file", path=path, **arguments))


async def test_a_file_comes_with_its_lines_size_and_time(shop: Workshop) -> None:
    os.utime(shop.put("a.txt", "one\ntwo\r\nthree"), ns=(0, 1_767_323_045_678_900_000))

    done = await shop.call("read_file", path="a.txt")

    assert done == CallOutcome(
        status=ResultStatus.OK,
        result={
            "content": "one\ntwo\r\nthree",
            "start_line": 1,
            "end_line": 3,
            "total_lines": 3,
            "size_bytes": 14,
            "modified_at": "2026-01-02T03:04:05.678Z",
        },
    )


async def test_reading_is_planned_as_a_look_at_the_path_as_given(shop: Workshop) -> None:
    shop.put("a.txt")

    planned = await shop.plan("read_file", path="./a.txt")

    assert isinstance(planned, PlannedCall)
    assert (planned.effect, planned.tool_class) == (Effect.PURE, ToolClass.READ)
    assert planned.preview == {"path": "./a.txt"}


@each_case(
    ("start", "end", "content", "last"),
    [
        (2, None, "two\nthree\n", 3),
        (2, 2, "two\n", 2),
        (1, 99, "one\ntwo\nthree\n", 3),
        (4, None, "", 3),
    ],
)
async def test_some_lines_of_a_file(
    shop: Workshop, start: int, end: int | None, content: str, last: int
) -> None:
    shop.put("a.txt", "one\ntwo\nthree\n")

    found = await read(shop, "a.txt", start_line=start, end_line=end)

    assert (found["content"], found["end_line"], found["total_lines"]) == (content, last, 3)


async def test_lines_end_at_line_feeds_alone(shop: Workshop) -> None:
    shop.put("a.txt", "a\x0bb\x0cc\x85d\u2028e\rf\n")

    assert (await read(shop, "a.txt"))["total_lines"] == 1


async def test_an_empty_file_has_no_line(shop: Workshop) -> None:
    shop.put("a.txt", "")

    found = await read(shop, "a.txt")

    assert (found["content"], found["end_line"], found["total_lines"]) == ("", 0, 0)


async def test_lines_that_go_backwards_are_no_argument(shop: Workshop) -> None:
    shop.put("a.txt")

    done = await shop.plan("read_file", path="a.txt", start_line=3, end_line=2)

    assert told(done) == ("error", "invalid_arguments")


@each_case("extra", [{"start_line": 0}, {"encoding": "x"}, {"start_line": "1"}])
async def test_arguments_are_strict(shop: Workshop, extra: dict[str, Any]) -> None:
    done = await shop.plan("read_file", path="a.txt", **extra)

    assert told(done) == ("error", "invalid_arguments")


async def test_what_is_no_utf_8_is_replaced_and_said(shop: Workshop) -> None:
    shop.put("a.txt", b"gr\xfc\xdfe\n" + b"x" * 9000 + b"\0end")

    shop.put("b.txt", b"\xfc")

    found = await read(shop, "a.txt")

    assert found["lossy"] is True
    assert (await read(shop, "b.txt"))["lossy"] is True
    assert found["content"] == "gr\ufffd\ufffde\n" + "x" * 9000 + "\ufffdend"


async def test_what_has_a_zero_byte_at_the_beginning_is_not_text(shop: Workshop) -> None:
    shop.put("a.bin", b"x" * 8191 + b"\0")

    assert told(await shop.call("read_file", path="a.bin")) == ("error", "binary")


async def test_eight_mebibytes_are_read_and_no_byte_more(shop: Workshop) -> None:
    shop.put("most", "x" * (8 * MEBIBYTE))
    shop.put("more", "x" * (8 * MEBIBYTE + 1))

    assert (await read(shop, "most"))["size_bytes"] == 8 * MEBIBYTE
    assert told(await shop.call("read_file", path="more")) == ("error", "too_large")


async def test_a_file_that_claims_to_be_huge_is_not_read(shop: Workshop) -> None:
    os.truncate(shop.put("sparse"), 1 << 40)

    assert told(await shop.call("read_file", path="sparse")) == ("error", "too_large")


async def test_what_is_not_there_may_come_until_the_call_runs(shop: Workshop) -> None:
    planned = await shop.plan("read_file", path="a/b.txt")
    shop.put("a/b.txt", "late\n")

    assert result(await shop.run(planned))["content"] == "late\n"
    assert told(await shop.call("read_file", path="a/c.txt")) == ("error", "not_found")
    assert told(await shop.call("read_file", path="a/b.txt/c")) == ("error", "not_found")
    assert told(await shop.call("read_file", path="no/../a/b.txt")) == ("error", "not_found")


async def test_only_regular_files_are_read_and_none_is_waited_for(shop: Workshop) -> None:
    (shop.inside / "folder").mkdir()
    os.mkfifo(shop.inside / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(shop.inside, os.O_RDONLY)
        # By a short name, because an address has little room.
        server.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)

    async with asyncio.timeout(5):
        for path in ("folder", ".", "pipe", "socket"):
            assert told(await shop.call("read_file", path=path)) == ("error", "not_a_file"), path


async def test_a_name_that_is_too_long_is_no_argument(shop: Workshop) -> None:
    done = await shop.call("read_file", path="x" * 256)

    assert told(done) == ("error", "invalid_arguments")


async def test_what_the_system_forbids_is_said_without_its_words(shop: Workshop) -> None:
    shop.put("a/b.txt")
    kernel = probe_kernel()

    def forbidding(root: int, names: Any, flags: int) -> int:
        raise OSError(5, "secret words of the system")

    shop = Workshop(shop.inside.parent, kernel=kernel._replace(open_folder=forbidding))
    done = await shop.call("read_file", path="a/../a/b.txt")

    assert told(done) == ("error", "failed")
    assert "secret" not in str(done)


async def test_an_absurd_time_is_left_out() -> None:
    found = os.stat_result((0,) * 10, {"st_mtime_ns": 1 << 62})

    assert modified_at(found) == "2116-02-20T23:53:38.427Z"
    assert modified_at(os.stat_result((0,) * 10, {"st_mtime_ns": 1 << 72})) is None


async def test_the_kernel_is_not_read_as_if_it_were_a_file(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, tier=FsTier.FULL)

    for path in ("/proc/self/environ", "/proc/1/status", "/proc/version", "/sys/kernel/notes"):
        done = await shop.call("read_file", path=path)
        assert told(done) == ("denied", "protected_path"), path
    assert told(await shop.call("list_directory", path="/proc")) == ("denied", "protected_path")


async def test_devices_are_neither_read_nor_written(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, tier=FsTier.FULL)

    for path in ("/dev/null", "/dev/new/file", "/dev/stdin", "/dev/fd/0"):
        for tool, more in (("read_file", {}), ("write_file", {"content": "x"})):
            done = await shop.plan(tool, path=path, **more)
            assert told(done)[0] == "denied", path
