"""`list_directory`: names in order, links as links, and what is protected counted, not shown."""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import FsTier
from holdfast.ports.tools import CallOutcome
from holdfast.tools.files import listing
from tests.marks import each_case
from tests.tools.file_fixture import Workshop, result, told

pytestmark = pytest.mark.anyio

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n"


async def paths(shop: Workshop, **arguments: Any) -> list[str]:
    found = result(await shop.call("list_directory", **arguments))
    return [each["path"] for each in found["entries"]]


async def test_entries_come_with_type_size_and_time(shop: Workshop) -> None:
    shop.put("b.txt", "four")
    (shop.inside / "a").mkdir()
    (shop.inside / "c").symlink_to("b.txt")
    os.mkfifo(shop.inside / "d")
    for name in ["a", "b.txt", "c", "d"]:
        os.utime(shop.inside / name, (0, 1_700_000_000), follow_symlinks=False)

    done = await shop.call("list_directory")

    at = "2023-11-14T22:13:20.000Z"
    size = (shop.inside / "a").stat().st_size
    assert done == CallOutcome(
        status=ResultStatus.OK,
        result={
            "entries": [
                {"path": "a", "type": "directory", "size_bytes": size, "modified_at": at},
                {"path": "b.txt", "type": "file", "size_bytes": 4, "modified_at": at},
                {"path": "c", "type": "link", "size_bytes": 5, "modified_at": at},
                {"path": "d", "type": "other", "size_bytes": 0, "modified_at": at},
            ],
            "truncated": False,
            "withheld": 0,
        },
    )


async def test_levels_come_one_after_the_other_and_only_as_many_as_asked_for(
    shop: Workshop,
) -> None:
    for path in ("z.txt", "a/b/c/d/e/f.txt", "a/a.txt", "b/a.txt"):
        shop.put(path)

    assert await paths(shop) == ["a", "b", "z.txt"]
    assert await paths(shop, depth=2) == ["a", "b", "z.txt", "a/a.txt", "a/b", "b/a.txt"]
    assert len(await paths(shop, depth=5)) == 9
    assert told(await shop.plan("list_directory", depth=6)) == ("error", "invalid_arguments")


async def test_paths_are_spelled_as_the_directory_was(shop: Workshop) -> None:
    shop.put("a/b.txt")

    assert await paths(shop, path=".") == ["a"]
    assert await paths(shop, path="a") == ["a/b.txt"]
    assert await paths(shop, path="./a/") == ["./a/b.txt"]
    assert await paths(shop, path="a/..") == ["a/../a"]
    assert await paths(shop, path=str(shop.inside)) == [f"{shop.inside}/a"]


async def test_the_root_of_everything_can_be_listed(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, tier=FsTier.FULL)

    found = await paths(shop, path="/")

    assert "/proc" in found
    assert all(each.startswith("/") and each.count("/") == 1 for each in found)


@each_case(
    ("glob", "found"),
    [
        ("*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("?.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/*.py", ["src/b.py"]),
        ("src/**/*.py", ["src/b.py", "src/deep/c.py"]),
        ("**/c.*", ["src/deep/c.py"]),
        ("[ab].py", ["a.py", "src/b.py"]),
        ("[!ab].py", ["src/deep/c.py"]),
        ("[a-b].py", ["a.py", "src/b.py"]),
        ("a.py", ["a.py"]),
        ("a?py", ["a.py"]),
        ("./a.py", ["a.py"]),
        ("x[", ["x["]),
        ("*.", []),
    ],
)
async def test_a_glob_chooses_by_name_or_by_path(
    shop: Workshop, glob: str, found: list[str]
) -> None:
    for path in ("a.py", "src/b.py", "src/deep/c.py", "x[", "src/other.txt"):
        shop.put(path)

    assert await paths(shop, depth=5, glob=glob) == found


async def test_a_glob_that_is_none_is_no_argument(shop: Workshop) -> None:
    assert told(await shop.plan("list_directory", glob="[z-a]")) == ("error", "invalid_arguments")


async def test_what_is_protected_is_left_out_and_counted(shop: Workshop) -> None:
    shop.put("a.txt")
    shop.put(".env")
    shop.put(".ssh/config")
    shop.put("server.key", f"# mine\n{KEY}")
    shop.put("sub/.netrc")

    found = result(await shop.call("list_directory", depth=3))

    assert [each["path"] for each in found["entries"]] == ["a.txt", "sub"]
    assert found["withheld"] == 4


async def test_a_folder_may_have_the_name_of_a_protected_file(shop: Workshop) -> None:
    shop.put(".env/lib/a.py")

    assert await paths(shop, depth=2) == [".env", ".env/lib"]
    assert await paths(shop, path=".env") == [".env/lib"]


async def test_a_protected_folder_is_not_listed(shop: Workshop) -> None:
    shop.put(".ssh/config")
    (shop.inside / "innocent").symlink_to(".ssh")

    for path in (".ssh", "innocent", ".ssh/sub"):
        done = await shop.call("list_directory", path=path)
        assert told(done) == ("denied", "protected_path"), path


async def test_so_many_entries_are_shown_and_more_are_said(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_ENTRIES_MOST", 3)
    for name in "abcd":
        shop.put(name)

    found = result(await shop.call("list_directory"))

    assert ([each["path"] for each in found["entries"]], found["truncated"]) == (list("abc"), True)
    (shop.inside / "d").unlink()
    assert result(await shop.call("list_directory"))["truncated"] is False


async def test_names_that_are_no_text_are_shown_as_well_as_possible(shop: Workshop) -> None:
    os.close(os.open(os.fsencode(shop.inside) + b"/b\xffd", os.O_CREAT))
    shop.put("a\nb\u202e")

    assert await paths(shop) == ["a\nb\u202e", "b\ufffdd"]
    assert await paths(shop, glob="b*") == ["b\ufffdd"]


async def test_a_file_is_no_directory(shop: Workshop) -> None:
    shop.put("a.txt")

    assert told(await shop.call("list_directory", path="a.txt")) == ("error", "not_found")
    assert told(await shop.call("list_directory", path="no")) == ("error", "not_found")


async def test_a_folder_that_cannot_be_opened_is_passed_over(
    shop: Workshop, tmp_path: Path
) -> None:
    shop.put("a/b.txt")
    shop.put("c/d.txt")

    def opened(root: int, names: Any, flags: int) -> int:
        if names == ("a",):
            raise PermissionError(13, "no")
        return kernel.open_folder(root, names, flags)

    from holdfast.tools.files.openat import probe_kernel

    kernel = probe_kernel()
    shop = Workshop(tmp_path, kernel=kernel._replace(open_folder=opened))

    assert await paths(shop, depth=2) == ["a", "c", "c/d.txt"]
