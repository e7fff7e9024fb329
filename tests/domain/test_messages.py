"""The record: what a row may hold, how it is stored, and the chain through all rows."""

from hashlib import sha256
from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    CHAIN_START,
    CLOSING_NOTICES,
    MEDIA_MOST,
    PARTS_OF,
    TEXT_LARGEST,
    Location,
    Media,
    Message,
    NoticeCode,
    Part,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
    decode_parts,
    encode_parts,
    media_handle,
    media_hash,
    memory_of,
    require_parts,
    require_sendable,
)
from holdfast.domain.time import microseconds
from tests.builders import SESSION_ID, a_message, a_tool_call, a_transcript, an_id, hash_of
from tests.domain.strategies import INSTANTS, UUIDS, parts_of, rows, values_of
from tests.marks import demands, each_case

KINDS = get_args(Part)
PICTURE = Media(mime_type="image/png", ref="media://sha256-" + "0" * 64)

ALLOWED = {
    Role.USER: {"text", "media"},
    Role.ASSISTANT: {"text", "reasoning", "media", "output"},
    Role.TOOL_CALL: {"tool_call"},
    Role.TOOL_RESULT: {"tool_result"},
    Role.SYSTEM: {"text", "plan", "notice", "compaction", "step", "withdrawn"},
}


def tag_of(kind: type[Part]) -> str:
    return str(kind.__struct_config__.tag)


def test_every_role_holds_some_part_and_every_part_has_a_role() -> None:
    assert {role: set(map(tag_of, kinds)) for role, kinds in PARTS_OF.items()} == ALLOWED
    assert set(PARTS_OF) == set(Role)
    assert {kind for kinds in PARTS_OF.values() for kind in kinds} == set(KINDS)


@demands("S0-034b")
@pytest.mark.parametrize(("role", "kind"), list(product(Role, KINDS)))
@settings(max_examples=5)
@given(data=st.data())
def test_a_row_holds_the_parts_of_its_role_and_no_others(
    data: st.DataObject, role: Role, kind: type[Part]
) -> None:
    part = data.draw(values_of(kind))

    if tag_of(kind) in ALLOWED[role]:
        assert a_message(role=role, parts=(part,)).parts == (part,)
    else:
        with pytest.raises(Invalid) as refused:
            a_message(role=role, parts=(part,))
        assert refused.value.body() == {
            "error": Code.MESSAGE_INVALID,
            "message": f"A {role} message cannot contain a {tag_of(kind)} part.",
            "details": {"role": role},
        }


@each_case("role", [Role.TOOL_CALL, Role.TOOL_RESULT])
@each_case("count", [0, 2])
def test_a_tools_row_holds_exactly_one_part(role: Role, count: int) -> None:
    with pytest.raises(Invalid) as refused:
        require_parts(role, a_message(role=role).parts * count)

    assert refused.value.body() == {
        "error": Code.MESSAGE_INVALID,
        "message": f"A {role} message contains exactly one part.",
        "details": {"role": role},
    }


@each_case("role", [Role.USER, Role.ASSISTANT, Role.SYSTEM])
def test_any_other_row_may_hold_none_or_many(role: Role) -> None:
    assert a_message(role=role, parts=()).parts == ()
    assert len(a_message(role=role, parts=(Text(text="a"), Text(text="b"))).parts) == 2


def test_the_words_of_a_row_are_its_text_alone() -> None:
    parts = (Reasoning(text="hm"), Text(text="Hello, "), PICTURE, Text(text="world"))

    assert a_message(role=Role.ASSISTANT, parts=parts).text == "Hello, world"
    assert a_message(role=Role.TOOL_CALL).text == ""


def test_the_notices_that_close_a_turn_are_those_of_a_bad_end() -> None:
    informational = {
        NoticeCode.SESSION_CLOSED,
        NoticeCode.CALL_SETTLED,
        NoticeCode.UNKNOWN_VARIABLE,
        NoticeCode.TOOL_UNAVAILABLE,
        NoticeCode.TOOLS_CHANGED,
        NoticeCode.MCP_UNAVAILABLE,
        NoticeCode.MEDIA_REFUSED,
        NoticeCode.OUTPUT_INVALID,
        NoticeCode.BUDGET_WARNING,
        NoticeCode.UNPRICED_MODEL,
        NoticeCode.WORKSPACE_MOVED,
        NoticeCode.WORKTREE_CHANGED,
        NoticeCode.AGENT_FAILED,
        NoticeCode.INSTRUCTIONS,
        NoticeCode.HARNESS,
        NoticeCode.RESTORED,
        NoticeCode.AGENT_SILENT,
        NoticeCode.AGENT_RESTARTED,
        NoticeCode.AGENT_OPTION_REFUSED,
        NoticeCode.AGENT_COMPACTED,
        NoticeCode.REPLAY_LEFTOVER,
        NoticeCode.LATE_RESULT,
        NoticeCode.INFORMATION,
    }

    assert set(NoticeCode) - CLOSING_NOTICES == informational


@demands("S0-036", "S0-045c")
def test_reasoning_has_no_place_for_a_signature() -> None:
    stored = b'[{"type": "reasoning", "text": "hm", "signature": "canary"}]'

    assert Reasoning.__struct_fields__ == ("text",)
    assert b"canary" not in encode_parts(decode_parts(stored))


@given(st.binary(max_size=64))
def test_a_handle_is_made_of_what_it_names(content: bytes) -> None:
    handle = media_handle(content)

    assert handle == f"media://sha256-{sha256(content).hexdigest()}"
    assert media_hash(handle) == sha256(content).digest()


@each_case(
    "text",
    [
        "",
        "media://sha256-",
        "media://sha256-" + "0" * 63,
        "media://sha256-" + "0" * 65,
        "media://sha256-" + "F" * 64,
        "media://sha256-" + "0" * 64 + "\n",
        " media://sha256-" + "0" * 64,
        "media://md5-" + "0" * 64,
        "file:///etc/passwd",
    ],
)
def test_what_is_no_handle_names_nothing(text: str) -> None:
    assert media_hash(text) is None


@demands("S0-035", "S0-045c")
def test_media_is_a_handle_and_never_the_bytes() -> None:
    stored = b'[{"type": "media", "mime_type": "image/png", "ref": "media://x", "data": "canary"}]'

    assert Media.__struct_fields__ == ("mime_type", "ref", "name", "byte_length")
    assert b"canary" not in encode_parts(decode_parts(stored))


def test_a_message_holds_a_mebibyte_of_text_and_16_pictures() -> None:
    assert (TEXT_LARGEST, MEDIA_MOST) == (1_048_576, 16)


@each_case(
    "parts",
    [
        (Text(text="hello"),),
        (Text(text=" "), PICTURE),
        (PICTURE,),
        (PICTURE,) * MEDIA_MOST,
        (Text(text="x" * TEXT_LARGEST),),
        (Text(text="é" * (TEXT_LARGEST // 2)),),
        (Text(text=""), Text(text="👩‍🚀")),
    ],
)
def test_a_user_may_send_words_and_pictures(parts: tuple[Part, ...]) -> None:
    assert require_sendable(parts) == parts


@each_case(
    ("parts", "code"),
    [
        ((), Code.MESSAGE_EMPTY),
        ((Text(text=""),), Code.MESSAGE_EMPTY),
        ((Text(text=" \n"), Text(text="\u2003")), Code.MESSAGE_EMPTY),
        ((Text(text="a\x00b"),), Code.INVALID_TEXT),
        ((Text(text="a\ud800"),), Code.INVALID_TEXT),
        ((Text(text="\x00"), PICTURE), Code.INVALID_TEXT),
        ((Text(text="\ud83d"), Text(text="\ude80")), Code.INVALID_TEXT),
        ((Text(text="x" * (TEXT_LARGEST + 1)),), Code.MESSAGE_TOO_LARGE),
        ((Text(text="é" * (TEXT_LARGEST // 2 + 1)),), Code.MESSAGE_TOO_LARGE),
        ((Text(text="x" * TEXT_LARGEST), Text(text="x")), Code.MESSAGE_TOO_LARGE),
        ((PICTURE,) * (MEDIA_MOST + 1), Code.MESSAGE_TOO_LARGE),
        ((Reasoning(text="hm"),), Code.MESSAGE_INVALID),
        ((a_tool_call(),), Code.MESSAGE_INVALID),
        ((replace(PICTURE, mime_type="Image/PNG"),), Code.MESSAGE_INVALID),
        ((replace(PICTURE, mime_type="image/png; x=1"),), Code.MESSAGE_INVALID),
        ((replace(PICTURE, mime_type="application/zip"),), Code.MESSAGE_INVALID),
        ((replace(PICTURE, mime_type=f"image/{'x' * 250}"),), Code.MESSAGE_INVALID),
        ((replace(PICTURE, name=""),), Code.INVALID_TEXT),
        ((replace(PICTURE, name="\ud800"),), Code.INVALID_TEXT),
        ((replace(PICTURE, name="x" * 256),), Code.INVALID_TEXT),
    ],
    ids=range(20),
)
def test_what_a_user_cannot_send_is_refused(parts: tuple[Part, ...], code: Code) -> None:
    with pytest.raises(Invalid) as refused:
        require_sendable(parts)

    assert refused.value.code is code


@demands("S0-034", "S1-057")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_part_is_read_as_it_was_stored(data: st.DataObject, kind: type[Part]) -> None:
    part = data.draw(values_of(kind))

    assert decode_parts(encode_parts((part, part))) == (part, part)


@pytest.mark.parametrize("role", Role)
@given(data=st.data())
def test_what_a_row_holds_is_stored_as_the_same_bytes_every_time(
    data: st.DataObject, role: Role
) -> None:
    stored = encode_parts(data.draw(parts_of(role)))

    assert encode_parts(decode_parts(stored)) == stored


@each_case(
    "stored",
    [
        b"",
        b"{}",
        b'[{"type": "hologram"}]',
        b'[{"type": "text"}]',
        b'[{"type": "text", "text": 1}]',
        b'[{"type": "notice", "code": "gossip", "text": "a"}]',
        b'[{"type": "compaction", "summary": "s", "dropped_through": true}]',
    ],
)
def test_bytes_that_hold_no_parts_are_not_read(stored: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_parts(stored)


@demands("S0-017b")
def test_a_newer_writers_keys_are_passed_over() -> None:
    stored = b'[{"type": "text", "text": "a", "mood": "good"}]'

    assert decode_parts(stored) == (Text(text="a"),)


@each_case(("model_id", "told"), [("model-1", "model-1"), (None, "")])
def test_the_hash_of_a_row_never_changes_its_recipe(model_id: str | None, told: str) -> None:
    row = a_message("hé", id="m-1", sequence=3, turn=2, model_id=model_id)
    content = '[{"type":"text","text":"hé"}]'
    written = f"m-1|3|2|user|{told}|1767323045678901|{content}"

    assert encode_parts(row.parts) == content.encode()
    assert CHAIN_START.hex() == "00" * 32
    assert hash_of(row, b"\x07" * 32) == sha256(b"\x07" * 32 + written.encode()).digest()


COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "id": UUIDS,
    "sequence": st.integers(1),
    "turn": st.integers(0),
    "model_id": st.none() | UUIDS,
    "at": INSTANTS.map(microseconds),
    "parts": parts_of(Role.ASSISTANT),
}
ROWS = st.builds(a_message, role=st.just(Role.ASSISTANT), **COLUMNS)


@pytest.mark.parametrize("column", COLUMNS)
@given(data=st.data())
def test_a_change_of_any_column_changes_the_hash(data: st.DataObject, column: str) -> None:
    row = data.draw(ROWS)
    changed = msgspec.structs.replace(row, **{column: data.draw(COLUMNS[column])})

    # Compared as stored: 1 and 1.0 are equal values and different bytes.
    before, after = ((getattr(each, column), encode_parts(each.parts)) for each in (row, changed))
    assert (hash_of(changed) == hash_of(row)) == (before == after)


@given(st.sampled_from([Role.USER, Role.SYSTEM]), st.sampled_from([Role.USER, Role.ASSISTANT]))
def test_a_change_of_role_changes_the_hash(one: Role, other: Role) -> None:
    changed = hash_of(a_message(role=one)) != hash_of(a_message(role=other))

    assert changed == (one is not other)


@given(rows(), st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_change_of_the_row_before_changes_the_hash(
    row: Message, previous: bytes, other: bytes
) -> None:
    assert (hash_of(row, previous) == hash_of(row, other)) == (previous == other)


@given(ROWS, ROWS)
def test_two_rows_that_differ_have_two_hashes(one: Message, other: Message) -> None:
    same = all(
        getattr(one, column) == getattr(other, column) for column in COLUMNS if column != "parts"
    ) and encode_parts(one.parts) == encode_parts(other.parts)

    assert (hash_of(one) == hash_of(other)) == same


@given(st.lists(rows(), min_size=2, max_size=6), st.data())
def test_one_chain_runs_through_a_session_and_its_fork(
    lines: list[Message], data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(lines) - 1))
    whole = a_transcript(*lines)
    elsewhere = [msgspec.structs.replace(row, session_id=an_id(77)) for row in lines[at:]]

    fork = a_transcript(*elsewhere, previous=bytes.fromhex(whole[at - 1].hash), first=at + 1)

    assert [row.hash for row in fork] == [row.hash for row in whole[at:]]
    assert {row.session_id for row in whole[:at]} == {SESSION_ID}


@given(st.lists(rows(), min_size=1, max_size=6), st.data())
def test_a_row_changed_afterwards_breaks_every_later_hash(
    lines: list[Message], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(lines) - 1))
    told = a_transcript(*lines)
    later = msgspec.structs.replace(told[at], at=told[at].at + 1)
    forged = a_transcript(*told[:at], later, *told[at + 1 :])

    same = [one.hash == other.hash for one, other in zip(told, forged, strict=True)]
    assert same == [True] * at + [False] * (len(lines) - at)


def test_what_only_another_agent_says_of_a_call_takes_no_room_in_rows_of_ours() -> None:
    own = ToolCall(id=CallId("c"), name="ls", arguments={})
    foreign = ToolCall(
        id=CallId("c"),
        name="ls",
        arguments={},
        title="List",
        kind="read",
        locations=(Location(path="/a", line=3), Location(path="/b")),
    )

    assert encode_parts((own,)) == b'[{"type":"tool_call","id":"c","name":"ls","arguments":{}}]'
    assert decode_parts(encode_parts((own, foreign))) == (own, foreign)


def test_the_memory_of_a_row_includes_what_a_call_was_given_and_has_returned() -> None:
    long = "x" * 10_000
    call = ToolCall(id=CallId("c"), name="f", arguments={"content": long})
    result = ToolResult(call_id=call.id, name="f", status=ResultStatus.OK, result={"a": long})
    text = Text(text=long)

    sizes = [
        memory_of(a_message(role=role, parts=(part,)))
        for role, part in (
            (Role.ASSISTANT, text),
            (Role.TOOL_CALL, call),
            (Role.TOOL_RESULT, result),
            (Role.TOOL_RESULT, replace(result, result=long)),
        )
    ]

    assert all(10_000 < size < 20_000 for size in sizes)
