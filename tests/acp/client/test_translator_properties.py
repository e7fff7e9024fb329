"""Whatever an agent sends, the drafts are a turn that can be written, and nothing is raised."""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.acp.client.translator import Drafts, Translator
from holdfast.acp.rpc.framing import JsonRpcError
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome
from holdfast.domain.events import (
    Channel,
    Failure,
    FailureCode,
    StepDelta,
    StepEnded,
    StepStarted,
    ToolEnded,
    ToolStarted,
    encode_payload,
)
from holdfast.domain.messages import (
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    encode_parts,
    require_parts,
)
from tests.acp.session_updates import Params, a_translator, say, think, update

# Surrogates and NUL among them: what a program writes is anybody's.
TEXT = st.text(alphabet=st.characters(), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
IDS = st.sampled_from(["a", "b", 0, "old", ""])
STATUS = st.sampled_from(["pending", "in_progress", "completed", "failed", "odd"])
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "resource", "resource_link", "odd"])},
    optional={
        "text": TEXT | JSON,
        "data": st.sampled_from(["aGk=", "%", ""]),
        "mimeType": TEXT | JSON,
        "uri": TEXT,
        "resource": st.fixed_dictionaries({}, optional={"text": TEXT, "blob": JSON, "uri": TEXT}),
    },
)
CALL_FIELDS = {
    "status": STATUS | JSON,
    "rawInput": JSON,
    "rawOutput": JSON,
    "title": TEXT | JSON,
    "kind": st.sampled_from(["read", "edit", "x"]) | JSON,
    "name": TEXT,
    "locations": st.lists(st.fixed_dictionaries({}, optional={"path": TEXT, "line": JSON})) | JSON,
    "content": st.lists(
        st.fixed_dictionaries({"type": st.just("content"), "content": BLOCKS})
        | st.fixed_dictionaries({"type": st.just("diff")}, optional={"path": TEXT, "newText": JSON})
        | JSON,
        max_size=3,
    ),
}
CALLS = st.fixed_dictionaries({"toolCallId": IDS | JSON}, optional=CALL_FIELDS)
KNOWN = st.one_of(
    st.builds(say, TEXT, messageId=st.sampled_from([None, "m", "n", 3])),
    st.builds(think, TEXT),
    st.builds(lambda block: update("agent_message_chunk", content=block), BLOCKS),
    st.builds(lambda call: update("tool_call", **call), CALLS),
    st.builds(lambda call: update("tool_call_update", **call), CALLS),
    st.builds(lambda entries: update("plan", entries=entries), JSON | st.lists(BLOCKS)),
    st.builds(lambda said: update("notice", message=said), TEXT | JSON),
    st.builds(lambda said: update("compaction_update", status="completed", summary=said), JSON),
    st.builds(
        lambda used, cost: update("usage_update", used=used, cost=cost),
        JSON,
        st.fixed_dictionaries({"amount": JSON, "currency": st.sampled_from(["USD", "EUR"])}),
    ),
    st.builds(lambda title: update("session_info_update", title=title), JSON),
    st.builds(lambda found: update("available_commands_update", availableCommands=found), JSON),
)
KINDS = st.sampled_from(
    ["agent_message_chunk", "tool_call", "tool_call_update", "plan", "usage_update", "odd"]
)
GARBAGE = JSON | st.builds(
    lambda kind, fields: {"update": {"sessionUpdate": kind, **fields}},
    KINDS,
    st.dictionaries(st.sampled_from(["content", "entries", "toolCallId", "_meta", "used"]), JSON),
)
ACTS = st.tuples(
    st.sampled_from(["update", "update", "update", "flush", "request", "deny"]),
    KNOWN | GARBAGE,
    st.floats(min_value=0, max_value=2),
)
ENDS = st.one_of(
    st.tuples(st.just("end"), JSON | st.fixed_dictionaries({"stopReason": TEXT, "usage": JSON})),
    st.tuples(st.just("end_with_error"), st.builds(JsonRpcError, st.integers(), TEXT)),
    st.tuples(
        st.just("fail"),
        st.builds(Failure, code=st.sampled_from(FailureCode), message=st.just("gone")),
    ),
)


def played(acts: list[tuple[str, Any, float]], end: tuple[str, Any]) -> list[Drafts]:
    """Return the batches of a turn in which all that has happened, and then an end."""
    translator = a_translator(taken=frozenset({"old"}))
    batches: list[Drafts] = []
    now = 0.0
    for verb, params, pause in acts:
        now += pause
        if batch := _acted(translator, verb, params, now):
            batches.append(batch)
    ended = getattr(translator, end[0])(end[1])
    batches.append((*ended.drafts, ended.outcome))
    # Whoever speaks after the end is not heard.
    for verb, params, _ in acts[:3]:
        if verb != "request":
            assert _acted(translator, verb, params, now) == ()
    return batches


def _acted(translator: Translator, verb: str, params: Any, now: float) -> Drafts:
    if verb == "update":
        return translator.update(params, now=now)
    if verb == "flush":
        return translator.flush(now=now)
    payload = params.get("update") if isinstance(params, dict) else params
    if verb == "request":
        return translator.request(payload, now=now).drafts
    if isinstance(payload, dict):
        translator.deny(payload.get("toolCallId"))  # type: ignore[arg-type]
    return ()


@given(acts=st.lists(ACTS, max_size=25), end=ENDS)
def test_any_updates_are_a_turn_that_can_be_written(
    acts: list[tuple[str, Any, float]], end: tuple[str, Any]
) -> None:
    batches = played(acts, end)

    drafts = [draft for batch in batches for draft in batch]
    assert all(batches)
    assert isinstance(drafts[-1], Outcome)
    assert Counter(map(type, drafts))[Outcome] == 1
    assert [draft.request_id for draft in drafts if isinstance(draft, CostDraft)] == ["acp:S:1"]
    _have_whole_steps(drafts)
    _have_one_result_for_each_call(drafts)
    _can_be_stored(drafts)


def _have_whole_steps(drafts: list[Draft]) -> None:
    """Steps are dense from 1, one at a time; their deltas are the text of their row."""
    number, opened = 0, False
    said: dict[Channel, str] = {}
    rows = {draft.id: draft for draft in drafts if isinstance(draft, MessageDraft) and draft.id}
    for draft in drafts:
        match draft:
            case StepStarted():
                assert (draft.step, opened) == (number + 1, False)
                number, opened, said = draft.step, True, dict.fromkeys(Channel, "")
            case StepDelta():
                assert (draft.step, opened) == (number, True)
                assert draft.offset == len(said[draft.channel])
                said[draft.channel] += draft.text
            case StepEnded():
                assert (draft.step, opened) == (number, True)
                opened = False
                row = rows.get(draft.message_id) if draft.message_id else None
                assert _texts(row) == said
            case _:
                pass
    assert not opened


def _texts(row: MessageDraft | None) -> dict[Channel, str]:
    parts = row.parts if row else ()
    thoughts = [part.text for part in parts if isinstance(part, Reasoning)]
    words = [part.text for part in parts if isinstance(part, Text)]
    return {Channel.REASONING: "".join(thoughts), Channel.TEXT: "".join(words)}


def _have_one_result_for_each_call(drafts: list[Draft]) -> None:
    """A call is intended, then started, then ended and answered: each once, under one name."""
    states: dict[str, list[tuple[str, str]]] = {}
    for draft in drafts:
        match draft:
            case MessageDraft(parts=(ToolCall(id=call_id, name=name),)):
                states.setdefault(call_id, []).append(("intended", name))
            case ToolStarted(call_id=call_id, name=name):
                states.setdefault(call_id, []).append(("started", name))
            case ToolEnded(call_id=call_id, name=name):
                states.setdefault(call_id, []).append(("ended", name))
            case MessageDraft(parts=(ToolResult(call_id=call_id, name=name),)):
                states.setdefault(call_id, []).append(("answered", name))
            case _:
                pass
    for life in states.values():
        assert [state for state, _ in life] == ["intended", "started", "ended", "answered"]
        assert len({name for _, name in life}) == 1
    assert "old" not in states


def _can_be_stored(drafts: list[Draft]) -> None:
    for draft in drafts:
        if isinstance(draft, MessageDraft):
            require_parts(draft.role, draft.parts)
            encode_parts(draft.parts).decode()
            assert draft.role is not Role.USER
        elif isinstance(draft, StepDelta | ToolStarted | ToolEnded):
            assert b"\\u0000" not in encode_payload(draft)
        else:
            msgspec.json.encode(draft)


@given(texts=st.lists(st.tuples(st.booleans(), TEXT), max_size=30), pause=st.floats(0, 0.1))
def test_no_text_is_lost_whatever_the_pieces(texts: list[tuple[bool, str]], pause: float) -> None:
    acts: list[tuple[str, Params, float]] = [
        ("update", say(text) if is_said else think(text), pause) for is_said, text in texts
    ]
    drafts = [draft for batch in played(acts, ("end", None)) for draft in batch]

    for channel, is_said in ((Channel.TEXT, True), (Channel.REASONING, False)):
        heard = "".join(
            draft.text
            for draft in drafts
            if isinstance(draft, StepDelta) and draft.channel is channel
        )
        sent = "".join(text for was_said, text in texts if was_said is is_said)
        # Half a character becomes a mark, alone or with its neighbours; all else stays.
        assert _plain(heard) == _plain(sent)


def _plain(text: str) -> str:
    return "".join(each for each in text if each.isascii() and each != "\x00")


@given(params=GARBAGE)
def test_garbage_is_never_an_error(params: Any) -> None:
    translator = a_translator()

    translator.update(params, now=0.0)

    assert isinstance(translator.end(params).outcome, Outcome)
