"""Calls that were cut off and are made again: honest about what they did and what was before."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.messages import ResultStatus
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall
from tests.tools.file_fixture import Workshop, result, told
from tests.tools.write_program import CALLS

# Programs are started here, which belongs to the whole run and not to the quick one.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
CREATE = {"path": "a.txt", "content": "new\n", "mode": "create"}
REPLACE = {"path": "a.txt", "content": "new\n"}


async def made(shop: Workshop, key: str, **arguments: Any) -> CallOutcome:
    """Make a call under a key of its own, as if everybody agreed."""
    asked = RequestedCall(id="c1", name="write_file", arguments=arguments, idempotency_key=key)
    planned = await shop.toolbox.plan(shop.place, asked)
    return await shop.run(planned) if isinstance(planned, PlannedCall) else planned


@pytest.mark.torture
def test_a_call_that_was_killed_anywhere_comes_out_as_if_it_was_not(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.tools.write_program", str(tmp_path)]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)

    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    seen: dict[str, list[Any]] = {}
    for name, _, *outcome in lines:
        seen.setdefault(name, []).append(outcome)

    assert set(seen) == set(CALLS)
    for name, (whole, *others) in seen.items():
        # The note, the content and the name, each written and made sure of.
        assert len(others) > 6, name
        assert [other for other in others if other != whole] == [], name
        assert whole[0]["is_same"], name
        assert whole[0]["done"]["status"] == ResultStatus.OK, name
    assert [seen[name][0][1] for name in ("create", "replace")] == [None, "old\n"]


@pytest.mark.parametrize("arguments", [CREATE, REPLACE])
async def test_the_same_call_again_tells_the_same(
    shop: Workshop, arguments: dict[str, Any]
) -> None:
    if arguments is REPLACE:
        shop.put("a.txt", "old\n")

    first = await made(shop, "k1", **arguments)
    stamp = (shop.inside / "a.txt").stat()
    again = await made(shop, "k1", **arguments)

    assert again == first
    assert again.status is ResultStatus.OK
    # It was there already, so nothing was done a second time.
    assert (shop.inside / "a.txt").stat() == stamp


async def test_what_somebody_wants_to_be_done_again_is_done_again(shop: Workshop) -> None:
    adding = {"path": "a.txt", "content": "new\n", "mode": "append"}

    first = await made(shop, "k1", **adding)
    again = await made(shop, "k1", **adding)

    assert (result(first)["created"], result(again)["created"]) == (True, False)
    assert (shop.inside / "a.txt").read_text() == "new\nnew\n"


async def test_what_somebody_else_made_is_there_already(shop: Workshop) -> None:
    first = await made(shop, "k1", **CREATE)
    other = await made(shop, "k2", **CREATE)
    theirs = await made(shop, "k1", **{**CREATE, "path": "b.txt"})
    shop.put("c.txt", "new\n")
    same = await made(shop, "k1", **{**CREATE, "path": "c.txt"})

    assert first.status is theirs.status is ResultStatus.OK
    assert [told(each) for each in (other, same)] == [("error", "exists")] * 2


async def test_what_was_changed_since_is_not_taken_for_our_own(shop: Workshop) -> None:
    await made(shop, "k1", **CREATE)
    shop.put("a.txt", "theirs\n")

    create = await made(shop, "k1", **CREATE)
    replace = await made(shop, "k1", **REPLACE)

    assert told(create) == ("error", "exists")
    assert shop.shelf.kept[result(replace)["undo"]] == b"theirs\n"


@pytest.mark.parametrize("content", [None, b"", b"{", b"{}", b'{"call": 1}', b"\xff" * 9000])
async def test_without_a_note_nothing_is_known_to_be_our_own(
    shop: Workshop, content: bytes | None
) -> None:
    await made(shop, "k1", **CREATE)
    (note,) = shop.home.glob("*.attempt")
    note.unlink() if content is None else note.write_bytes(content)

    assert told(await made(shop, "k1", **CREATE)) == ("error", "exists")


async def test_a_note_about_a_content_that_nobody_has_kept_is_not_believed(
    shop: Workshop,
) -> None:
    shop.put("a.txt", "old\n")
    await made(shop, "k1", **REPLACE)
    shop.shelf.kept.clear()

    again = await made(shop, "k1", **REPLACE)

    assert shop.shelf.kept == {result(again)["undo"]: b"new\n"}


async def test_a_note_is_out_of_the_agents_reach_and_tells_no_content(shop: Workshop) -> None:
    shop.put("a.txt", "old-canary\n")
    await made(shop, "k1", path="a.txt", content="new-canary\n")

    (note,) = shop.home.glob("*.attempt")
    reading = await shop.plan("read_file", path=str(note))
    listed = result(await shop.call("list_directory", path=str(shop.scratch)))

    assert note.parent == shop.scratch.parent
    assert b"canary" not in note.read_bytes()
    assert told(reading)[0] == "denied"
    assert listed["entries"] == []


async def test_where_no_note_can_be_written_nothing_is_changed(shop: Workshop) -> None:
    file = shop.put("a.txt", "old\n")
    # A folder where the note would have to be.
    (shop.home / "scratch.attempt.new").mkdir()

    done = await made(shop, "k1", **REPLACE)

    assert told(done) == ("error", "failed")
    assert file.read_text() == "old\n"


async def test_a_call_that_has_to_be_asked_about_again_is_the_one_that_was_agreed_to(
    shop: Workshop,
) -> None:
    shop.put("a.txt", "old\n")
    first = await shop.plan("write_file", **REPLACE)
    assert isinstance(first, PlannedCall)
    await shop.run(first)

    again = await shop.toolbox.plan(shop.place, first.asked)
    other = msgspec.structs.replace(first.asked, idempotency_key="other")

    assert again == first
    assert await shop.toolbox.plan(shop.place, other) != first
