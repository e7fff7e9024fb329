"""`write_file` and `edit_file`: asked about as a diff, done at once or not at all, undoable."""

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect, ToolClass
from holdfast.ports.tools import CallOutcome, PlannedCall
from tests.marks import each_case
from tests.tools.file_fixture import ShelfInMemory, Workshop, result, told

pytestmark = pytest.mark.anyio


async def planned(shop: Workshop, tool: str, /, **arguments: Any) -> PlannedCall:
    found = await shop.plan(tool, **arguments)
    assert isinstance(found, PlannedCall), found
    return found


def left(shop: Workshop) -> list[str]:
    return sorted(str(each.relative_to(shop.inside)) for each in shop.inside.rglob("*"))


async def test_a_new_file_is_made_and_nothing_else_is_left(shop: Workshop) -> None:
    done = await shop.call("write_file", path="a.txt", content="grüße\n")

    assert done == CallOutcome(
        status=ResultStatus.OK,
        result={"path": "a.txt", "bytes_written": 8, "created": True, "undo": None},
    )
    assert (shop.inside / "a.txt").read_text() == "grüße\n"
    assert left(shop) == ["a.txt"]
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((shop.inside / "a.txt").stat().st_mode) == 0o666 & ~umask


async def test_what_was_there_is_kept_before_it_is_replaced(shop: Workshop) -> None:
    file = shop.put("a.txt", "before\n")
    file.chmod(0o4750)

    done = await shop.call("write_file", path="a.txt", content="after\n")

    undo = result(done)["undo"]
    assert result(done) == {"path": "a.txt", "bytes_written": 6, "created": False, "undo": undo}
    assert shop.shelf.kept == {undo: b"before\n"}
    assert file.read_text() == "after\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    assert left(shop) == ["a.txt"]


async def test_a_replaced_file_stays_its_owners(shop: Workshop) -> None:
    file = shop.put("a.txt")
    owner = 4711 if os.geteuid() == 0 else os.geteuid()
    os.chown(file, owner, -1)

    await shop.call("write_file", path="a.txt", content="x")

    assert file.stat().st_uid == owner


async def test_readers_see_the_old_or_the_new_and_never_a_part(shop: Workshop) -> None:
    file = shop.put("a.txt", "old")
    with file.open() as reader:
        await shop.call("write_file", path="a.txt", content="new and longer")

        assert reader.read() == "old"
    assert file.read_text() == "new and longer"


async def test_create_refuses_what_exists(shop: Workshop) -> None:
    file = shop.put("a.txt", "mine\n")

    done = await shop.plan("write_file", path="a.txt", content="x", mode="create")

    assert told(done) == ("error", "exists")
    assert file.read_text() == "mine\n"
    created = await shop.call("write_file", path="b.txt", content="x", mode="create")
    assert result(created)["created"]


async def test_append_adds_to_the_end_or_begins_a_file(shop: Workshop) -> None:
    file = shop.put("a.txt", "one\n")
    same = file.stat().st_ino

    added = await shop.call("write_file", path="a.txt", content="two\n", mode="append")
    begun = await shop.call("write_file", path="b.txt", content="new\n", mode="append")

    assert (result(added)["bytes_written"], result(added)["created"]) == (4, False)
    assert shop.shelf.kept[result(added)["undo"]] == b"one\n"
    assert (file.read_text(), file.stat().st_ino) == ("one\ntwo\n", same)
    assert (result(begun)["created"], result(begun)["undo"]) == (True, None)
    assert left(shop) == ["a.txt", "b.txt"]


async def test_directories_are_made_only_when_asked_for(shop: Workshop) -> None:
    refused = await shop.plan("write_file", path="a/b/c.txt", content="x")
    made = await shop.call("write_file", path="a/b/c.txt", content="x", create_dirs=True)
    begun = await shop.call(
        "write_file", path="d/e.txt", content="x", mode="append", create_dirs=True
    )

    assert told(refused) == ("error", "not_found")
    assert result(made)["created"]
    assert result(begun)["created"]
    assert left(shop) == ["a", "a/b", "a/b/c.txt", "d", "d/e.txt"]


async def test_not_too_many_directories_are_made_at_once(shop: Workshop) -> None:
    path = "a/" * 33 + "b.txt"

    done = await shop.plan("write_file", path=path, content="x", create_dirs=True)

    assert told(done) == ("error", "invalid_arguments")
    assert left(shop) == []
    assert result(await shop.call("write_file", path=path[2:], content="x", create_dirs=True))


async def test_directories_are_not_made_below_a_file(shop: Workshop) -> None:
    shop.put("a.txt")

    done = await shop.plan("write_file", path="a.txt/b/c", content="x", create_dirs=True)

    assert told(done) == ("error", "not_found")


async def test_an_edit_replaces_exactly_what_was_named(shop: Workshop) -> None:
    file = shop.put("a.txt", b"one two\r\nthr\xff two")

    done = await shop.call("edit_file", path="a.txt", old="two\r\n", new="2\n")

    undo = result(done)["undo"]
    assert result(done) == {"path": "a.txt", "replaced": 1, "undo": undo}
    assert file.read_bytes() == b"one 2\nthr\xff two"
    assert shop.shelf.kept[undo] == b"one two\r\nthr\xff two"


async def test_an_edit_may_replace_several_if_their_number_is_right(shop: Workshop) -> None:
    file = shop.put("a.txt", "x y x")

    done = await shop.call("edit_file", path="a.txt", old="x", new="", occurrences=2)

    assert (result(done)["replaced"], file.read_text()) == (2, " y ")


@each_case(
    ("old", "occurrences", "code"),
    [
        ("z", 1, "no_match"),
        ("x", 1, "ambiguous_match"),
        ("x", 3, "ambiguous_match"),
        ("", 1, "invalid_arguments"),
        ("x", 0, "invalid_arguments"),
    ],
)
async def test_an_edit_that_does_not_fit_changes_nothing(
    shop: Workshop, old: str, occurrences: int, code: str
) -> None:
    file = shop.put("a.txt", "x y x")

    done = await shop.call("edit_file", path="a.txt", old=old, new="!", occurrences=occurrences)

    assert told(done) == ("error", code)
    assert (file.read_text(), shop.shelf.kept) == ("x y x", {})


async def test_an_edit_needs_a_text_file(shop: Workshop) -> None:
    shop.put("a.bin", b"x\0")
    (shop.inside / "folder").mkdir()

    for path, code in (("a.bin", "binary"), ("no.txt", "not_found"), ("folder", "not_a_file")):
        done = await shop.plan("edit_file", path=path, old="x", new="y")
        assert told(done) == ("error", code)


async def test_only_regular_files_are_written(shop: Workshop) -> None:
    (shop.inside / "folder").mkdir()
    os.mkfifo(shop.inside / "pipe")

    async with asyncio.timeout(5):
        for path in ("folder", ".", "folder/..", "pipe"):
            for mode in ("replace", "append"):
                done = await shop.plan("write_file", path=path, content="x", mode=mode)
                assert told(done) == ("error", "not_a_file"), path


async def test_a_file_that_nobody_may_write_stays_as_it_is(shop: Workshop) -> None:
    shop.put("a.txt", "mine\n").chmod(0o444)

    done = await shop.plan("write_file", path="a.txt", content="x")

    assert told(done) == ("error", "failed")
    assert (shop.inside / "a.txt").read_text() == "mine\n"


async def test_eight_mebibytes_are_the_most(shop: Workshop) -> None:
    most = 8 << 20
    os.truncate(shop.put("large"), most + 1)

    for path, content in (("new", "x" * (most + 1)), ("large", "x")):
        done = await shop.plan("write_file", path=path, content=content)
        assert told(done) == ("error", "too_large")
    shop.put("a.txt", "xx")
    done = await shop.plan("edit_file", path="a.txt", old="xx", new="y" * (most + 1))
    assert told(done) == ("error", "too_large")


@each_case(
    ("mode", "effect"),
    [
        ("replace", Effect.IDEMPOTENT),
        ("create", Effect.IDEMPOTENT),
        ("append", Effect.UNSAFE),
    ],
)
async def test_the_effect_of_a_write_is_its_modes(
    shop: Workshop, mode: str, effect: Effect
) -> None:
    found = await planned(shop, "write_file", path="a.txt", content="x", mode=mode)

    assert found.effect is effect


async def test_an_edit_is_unsafe(shop: Workshop) -> None:
    shop.put("a.txt", "x")

    found = await planned(shop, "edit_file", path="a.txt", old="x", new="y")

    assert found.effect is Effect.UNSAFE


async def test_a_write_is_asked_about_and_remembered_by_its_directory(shop: Workshop) -> None:
    shop.put("sub/a.txt", "one\ntwo\nthree\n")

    found = await planned(shop, "write_file", path="./sub/a.txt", content="one\n2\nthree\n")

    assert found.tool_class is ToolClass.WRITE
    assert found.preview == {"path": "./sub/a.txt"}
    assert found.memory == f"write:{shop.inside}/sub"
    assert found.question == "\n".join(
        [
            f"{shop.inside}/sub/a.txt (change)",
            "@@ -1,3 +1,3 @@",
            " one",
            "-two",
            "+2",
            " three",
        ]
    )


async def test_a_new_file_is_shown_whole(shop: Workshop) -> None:
    found = await planned(shop, "write_file", path="a.sh", content="a\n\x1b[8mrm -rf\u202e\nb")

    assert found.question == "\n".join(
        [
            f"{shop.inside}/a.sh (new file)",
            "+a",
            "+\\u001b[8mrm -rf\\u202e",
            "+b",
            "\\ No newline at end of file",
        ]
    )


async def test_what_is_added_is_shown_whole(shop: Workshop) -> None:
    shop.put("a.txt", "one\n")

    found = await planned(shop, "write_file", path="a.txt", content="two\n", mode="append")

    assert found.question == f"{shop.inside}/a.txt (added at the end)\n+two"


async def test_what_replaces_something_else_than_text_is_shown_whole(shop: Workshop) -> None:
    shop.put("a.bin", b"\0\1")

    found = await planned(shop, "write_file", path="a.bin", content="text\n")

    assert found.question == f"{shop.inside}/a.bin (replaces 2 bytes that are not text)\n+text"


async def test_a_name_cannot_pass_for_a_line_of_the_question(shop: Workshop) -> None:
    found = await planned(shop, "write_file", path="a\n+b\x1b", content="x\n")

    assert found.question == f"{shop.inside}/a\\u000a+b\\u001b (new file)\n+x"


@pytest.mark.parametrize("change", ["content", "removed", "made", "link", "folder"])
async def test_what_changed_since_it_was_allowed_is_not_written(
    shop: Workshop, change: str
) -> None:
    file = shop.put("sub/a.txt", "seen\n")
    if change == "made":
        file.unlink()
    found = await planned(shop, "write_file", path="sub/a.txt", content="mine\n")
    if change in ("content", "made"):
        file.write_text("theirs\n")
    elif change == "removed":
        file.unlink()
    elif change == "link":
        file.unlink()
        file.symlink_to(shop.outside / "canary.txt")
    else:
        file.parent.rename(shop.inside / "moved")
        (shop.inside / "sub").symlink_to("moved")
    seen = {path: path.read_text() for path in shop.inside.rglob("*.txt")}

    done = await shop.run(found)

    assert told(done)[0] == "denied"
    assert told(done)[1] in ("target_changed", "outside_scope")
    assert {path: path.read_text() for path in shop.inside.rglob("*.txt")} == seen


@pytest.mark.parametrize("mode", ["replace", "append"])
async def test_what_changes_while_the_old_is_put_away_is_not_written(
    tmp_path: Path, mode: str
) -> None:
    shop = Workshop(tmp_path)
    file = shop.put("a.txt", "seen\n")

    class Meddling(ShelfInMemory):
        async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
            file.write_text("theirs\n")
            return await super().keep(content)

    shop.use_shelf(Meddling())

    done = await shop.call("write_file", path="a.txt", content="mine\n", mode=mode)

    assert told(done) == ("denied", "target_changed")
    assert file.read_text() == "theirs\n"


async def test_a_shelf_that_is_full_prevents_the_write(shop: Workshop) -> None:
    file = shop.put("a.txt", "seen\n")

    class Full(ShelfInMemory):
        async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
            raise OSError("no room")

    shop.use_shelf(Full())

    done = await shop.call("write_file", path="a.txt", content="mine\n")

    assert told(done) == ("error", "failed")
    assert file.read_text() == "seen\n"


@pytest.mark.parametrize("mode", ["replace", "append"])
async def test_a_full_disk_leaves_everything_as_it_was(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    shop.put("a.txt", "seen\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    old = await shop.call("write_file", path="a.txt", content="mine\n", mode="replace")
    new = await shop.call(
        "write_file", path="b/c/d.txt", content="mine\n", mode=mode, create_dirs=True
    )

    assert told(old) == told(new) == ("error", "failed")
    assert (shop.inside / "a.txt").read_text() == "seen\n"
    assert left(shop) == ["a.txt"]


async def test_a_write_that_ends_early_is_taken_back(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shop.put("a.txt", "seen\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, content: write(fd, bytes(content)[:2]))

    done = await shop.call("write_file", path="a.txt", content="mine\n", mode="append")

    assert told(done) == ("error", "failed")
    assert file.read_text() == "seen\n"


async def test_where_files_have_one_name_only_a_new_one_is_renamed(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)

    done = await shop.call("write_file", path="a.txt", content="x\n")

    assert result(done)["created"]
    assert left(shop) == ["a.txt"]


async def test_a_cancelled_write_is_whole_or_not_there(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shop.put("a.txt", "seen\n")
    reached, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        loop.call_soon_threadsafe(reached.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    task = asyncio.ensure_future(shop.call("write_file", path="a.txt", content="mine\n"))
    await reached.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert file.read_text() == "seen\n"
    assert left(shop) == ["a.txt"]
