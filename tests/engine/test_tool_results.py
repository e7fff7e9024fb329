"""Results as a model sees them: bounded, without bytes, and whole on the shelf."""

import asyncio
import base64
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.messages import media_handle
from holdfast.engine.tool_results import (
    DEEPEST,
    LARGEST,
    LINES_MOST,
    UNSHOWABLE,
    limit_result,
)
from tests.engine.stand_ins import StandInShelf
from tests.marks import demands, each_case

T = TypeVar("T")

MARK = re.compile(
    r"\[… (\d+) bytes omitted; read_output reads them from (media://sha256-\S{64}) …\]"
)
PICTURE = bytes(range(256))
ENCODED = base64.b64encode(PICTURE).decode()
HANDLE = media_handle(PICTURE)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def shown(value: Any) -> tuple[Any, StandInShelf]:
    shelf = StandInShelf()
    return run(limit_result(value, shelf)), shelf


def size(value: Any) -> int:
    return len(value.encode() if isinstance(value, str) else msgspec.json.encode(value))


def lines(value: Any) -> int:
    if isinstance(value, str):
        return value.count("\n") + 1
    inner = value.values() if isinstance(value, dict) else value
    return sum(map(lines, inner)) if isinstance(value, dict | list) else 0


def test_the_bounds_are_the_contracts() -> None:
    assert (LARGEST, LINES_MOST) == (48 * 1024, 1_500)


@each_case("value", [None, True, 1, 1.5, "", "x" * LARGEST, {}, [], {"a": [1, None]}])
def test_what_fits_stays_as_it_is(value: Any) -> None:
    found, shelf = shown(value)

    assert found == value
    assert shelf.kept == {}


def test_as_many_lines_as_are_allowed_stay_as_they_are() -> None:
    text = "\n".join(["x"] * LINES_MOST)

    assert shown(text)[0] == text
    assert shown({"content": text})[0] == {"content": text}


@pytest.mark.parametrize("text", ["x" * (LARGEST + 1), "\n".join(["x"] * (LINES_MOST + 1))])
def test_one_more_is_cut_and_kept_whole(text: str) -> None:
    found, shelf = shown(text)

    [mark] = MARK.finditer(found)
    assert shelf.kept == {mark[2]: text.encode()}
    head, tail = found[: mark.start() - 1], found[mark.end() + 1 :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(mark[1]) == len(text) - len(head) - len(tail)
    assert abs(len(head) - len(tail)) <= 1
    # Most of what is allowed is used.
    assert size(found) > LARGEST - 1_024 or lines(found) > LINES_MOST - 10


# Told by what is repeated and how often, so that a failure can be read.
Pieces = list[tuple[str, int]]
CHARACTERS = st.sampled_from(["a", "\n", '"', "\\", "ü", "😀", "\x01", "\x00", "\ud800", " "])
PIECES = st.lists(st.tuples(st.text(CHARACTERS, max_size=6), st.integers(0, 30_000)), max_size=3)
SHAPES = st.sampled_from(["text", "fields", "list", "nested"])


def text_of(pieces: Pieces) -> str:
    return "".join(unit * times for unit, times in pieces)


def value_of(shape: str, texts: list[str]) -> Any:
    """Return a result of that shape that holds the texts."""
    if shape == "text":
        return "".join(texts)
    if shape == "list":
        return texts
    fields: dict[str, Any] = {f"field {number}": text for number, text in enumerate(texts)}
    return {**fields, "count": len(texts)} if shape == "fields" else {"inner": [fields], "a": "b"}


@given(SHAPES, st.lists(PIECES, max_size=4))
def test_no_result_is_ever_larger_than_a_model_can_use(shape: str, told: list[Pieces]) -> None:
    found, shelf = shown(value_of(shape, list(map(text_of, told))))

    assert size(found) <= LARGEST
    assert lines(found) <= LINES_MOST
    # Storable as it is, and every handle that it names can be read.
    msgspec.json.encode(found)
    for mark in MARK.finditer(repr(found)):
        assert mark[2] in shelf.kept


@given(PIECES)
def test_a_text_that_was_cut_keeps_its_ends_and_can_be_read_whole(told: Pieces) -> None:
    text = text_of(told)
    found, shelf = shown(text)
    mended = text.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")

    if found == mended:
        return
    [mark] = MARK.finditer(found)
    part = run(shelf.read(mark[2]))
    assert part is not None
    assert part.content.decode() == mended
    head, tail = found[: mark.start() - 1], found[mark.end() + 1 :]
    assert mended.startswith(head)
    assert mended.endswith(tail)
    assert int(mark[1]) == size(mended) - size(head) - size(tail)


def test_the_other_fields_of_a_result_stay_when_its_text_is_cut() -> None:
    code = "def f():\n    return 'ü'\n" * 4_000
    result = {"content": code, "start_line": 1, "total_lines": 8_000, "path": "a.py"}

    found, shelf = shown(result)

    assert {**found, "content": None} == {**result, "content": None}
    [mark] = MARK.finditer(found["content"])
    assert shelf.kept == {mark[2]: code.encode()}
    assert found["content"].startswith("def f():\n")
    assert found["content"].endswith("return 'ü'\n")


def test_two_long_texts_share_the_room() -> None:
    found, shelf = shown({"stdout": "o" * 100_000, "stderr": "e" * 100_000, "exit_code": 1})

    assert found["exit_code"] == 1
    assert len(found["stdout"]) == len(found["stderr"]) > 20_000
    assert sorted(shelf.kept.values()) == [b"e" * 100_000, b"o" * 100_000]


def test_a_short_text_beside_a_long_one_stays() -> None:
    found, _ = shown({"stdout": "o" * 100_000, "stderr": "warning"})

    assert found["stderr"] == "warning"
    assert MARK.search(found["stdout"])


@each_case(
    "value",
    [
        {"matches": [{"line": number, "text": "x" * 200} for number in range(500)]},
        [{"line": number} for number in range(20_000)],
        {f"key{number}": "x" * 2_000 for number in range(100)},
    ],
)
def test_what_cannot_be_cut_field_by_field_is_cut_as_its_json(value: Any) -> None:
    found, shelf = shown(value)

    assert isinstance(found, str)
    [mark] = MARK.finditer(found)
    assert msgspec.json.decode(shelf.kept[mark[2]]) == value


def test_a_text_is_cut_by_what_it_takes_inside_json() -> None:
    found, _ = shown({"a": "\x01" * 60_000, "b": '"' * 60_000, "c": 1})

    # Six bytes each, and two: half of the room for either of them.
    assert found["c"] == 1
    assert LARGEST - 4_096 < size(found) <= LARGEST


INLINE = [
    ({"mimeType": "image/png", "data": ENCODED}, "image/png"),
    ({"mime_type": "image/png", "data": ENCODED}, "image/png"),
    ({"media_type": "image/png", "data": ENCODED}, "image/png"),
    ({"mimeType": "application/pdf", "blob": ENCODED, "uri": "file:///a"}, "application/pdf"),
]


@demands("S0-037")
@each_case(("value", "mime_type"), INLINE)
def test_an_object_that_carries_bytes_carries_a_handle_instead(
    value: dict[str, Any], mime_type: str
) -> None:
    found, shelf = shown([{"content": value}])

    rest = {key: inner for key, inner in value.items() if key not in {"data", "blob"}}
    assert found == [{"content": {**rest, "ref": HANDLE, "byte_length": 256}}]
    assert (shelf.kept, shelf.mime_types) == ({HANDLE: PICTURE}, {HANDLE: mime_type})


def test_what_stands_beside_the_bytes_is_looked_into() -> None:
    inner = {"mimeType": "image/png", "data": ENCODED}

    found, _ = shown({**inner, "thumbnail": inner})

    assert ENCODED not in repr(found)


@each_case(
    "value",
    [
        {"mimeType": "image/png", "data": "not base64!"},
        {"mimeType": "image/png", "data": 7},
        {"mimeType": "image/png"},
        {"mimeType": 7, "data": ENCODED},
        {"data": ENCODED},
        "data:image/png;base64,AAAA",
        f"data:image/png,{ENCODED}",
        "an essay about ;base64, and so on",
    ],
)
def test_what_only_looks_like_bytes_stays(value: Any) -> None:
    found, shelf = shown(value)

    assert (found, shelf.kept) == (value, {})


@demands("S0-037")
@each_case(
    "start",
    [
        "data:image/png;base64,",
        "data:image/svg+xml;charset=utf-8;base64,",
        "data:text/plain;charset=us-ascii;name=a.txt;base64,",
    ],
)
def test_a_data_url_in_a_text_becomes_its_handle(start: str) -> None:
    found, shelf = shown(f'<img src="{start}{ENCODED}"> and <img src="{start}{ENCODED}">')

    assert found == f'<img src="{HANDLE}"> and <img src="{HANDLE}">'
    assert shelf.kept == {HANDLE: PICTURE}


def test_a_data_url_that_is_broken_stays_and_the_next_one_does_not() -> None:
    broken = "data:image/png;base64," + "A" * 65
    good = f"data:image/png;base64,{ENCODED}"

    assert shown(f"{broken} {good}")[0] == f"{broken} {HANDLE}"


@demands("S0-037")
@each_case("kind", [bytes, bytearray, memoryview])
def test_raw_bytes_become_their_handle(kind: Any) -> None:
    found, shelf = shown({"a": [kind(PICTURE)]})

    assert (found, shelf.kept) == ({"a": [HANDLE]}, {HANDLE: PICTURE})


def test_many_data_urls_take_no_longer_than_their_length() -> None:
    text = "data:a/b;base64," * 200_000

    assert MARK.search(shown(text)[0])


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def test_what_cannot_be_written_down_leaves_nothing_on_the_shelf() -> None:
    shelf = StandInShelf()

    with pytest.raises(UNSHOWABLE):
        run(limit_result([PICTURE, object()], shelf))

    assert shelf.kept == {}


@each_case("value", [nested(DEEPEST + 1), nested(10_000), object(), {(1,): 2}])
def test_what_cannot_be_written_down_is_refused(value: Any) -> None:
    with pytest.raises(UNSHOWABLE):
        shown(value)


def test_the_deepest_that_is_allowed_is_shown() -> None:
    assert shown(nested(DEEPEST))[0] == nested(DEEPEST)


def test_a_large_result_does_not_hold_up_anybody_else() -> None:
    tree = {"structured": [{"a": number, "b": "hello", "c": [1, 2]} for number in range(100_000)]}
    looked = 0

    async def look() -> None:
        nonlocal looked
        while True:
            await asyncio.sleep(0)
            looked += 1

    async def work() -> Any:
        looking = asyncio.ensure_future(look())
        found = await limit_result(tree, StandInShelf())
        looking.cancel()
        return found

    found = run(work())

    assert MARK.search(found)
    # Others had their turn again and again while it was looked through.
    assert looked > 20
