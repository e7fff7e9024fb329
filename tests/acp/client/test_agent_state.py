"""What a program tells of itself: the newest counts, and it comes back as it was kept."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.acp.client.agent_state import (
    STATE_UPDATES,
    AgentState,
    restore_state,
    state_after_setup,
    state_after_update,
)
from tests.acp.session_updates import update
from tests.marks import each_case

COMMANDS = [{"name": "create plan", "description": "d"}, "odd", {"name": "web"}]
OPTIONS = [{"id": "model", "type": "select", "currentValue": "x"}]
KEPT = AgentState(
    commands=({"name": "create plan", "description": "d"}, {"name": "web"}),
    mode="code",
    options=({"id": "model", "type": "select", "currentValue": "x"},),
    used=5,
    size=10,
    cost=0.5,
    currency="USD",
    title="Hello",
)
BROKEN = {"name": "x\ud800", "more": {"n": "\x00"}}


def hear(told: AgentState, kind: str, **fields: Any) -> AgentState:
    return state_after_update(told, update(kind, **fields)["update"])


@each_case(
    ("kind", "fields", "changed"),
    [
        ("available_commands_update", {"availableCommands": COMMANDS}, {"commands": KEPT.commands}),
        ("current_mode_update", {"currentModeId": "code"}, {"mode": "code"}),
        ("current_mode_update", {"modeId": "code"}, {"mode": "code"}),
        ("config_option_update", {"configOptions": OPTIONS}, {"options": KEPT.options}),
        ("usage_update", {"used": 5, "size": 10}, {"used": 5, "size": 10}),
        (
            "usage_update",
            {"cost": {"amount": 0.5, "currency": "USD"}},
            {"cost": 0.5, "currency": "USD"},
        ),
        ("session_info_update", {"title": "Hello"}, {"title": "Hello"}),
        (
            "available_commands_update",
            {"availableCommands": [BROKEN]},
            {"commands": ({"name": "x\ufffd", "more": {"n": "\ufffd"}},)},
        ),
    ],
)
def test_each_update_of_the_state_replaces_what_it_tells(
    kind: str, fields: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert hear(AgentState(), kind, **fields) == AgentState(**changed)


@each_case(
    ("kind", "fields"),
    [
        ("agent_message_chunk", {"content": {"type": "text", "text": "x"}}),
        ("current_mode_update", {"modeId": None}),
        ("usage_update", {"used": "5", "size": -1, "cost": {"amount": True, "currency": "USD"}}),
        ("session_info_update", {"updatedAt": "2026"}),
        ("session_info_update", {"title": 5}),
        ("session_info_update", {"title": "Hello"}),
        ("hologram", {}),
    ],
)
def test_what_tells_nothing_new_leaves_the_same_object(kind: str, fields: dict[str, Any]) -> None:
    assert hear(KEPT, kind, **fields) is KEPT


def test_a_list_is_replaced_whole_and_a_title_may_be_taken_back() -> None:
    assert hear(KEPT, "available_commands_update", availableCommands=[]).commands == ()
    assert hear(KEPT, "session_info_update", title=None).title == ""


def test_the_answer_that_opens_a_conversation_tells_modes_options_and_models() -> None:
    result = {
        "sessionId": "s",
        "modes": {"currentModeId": "code", "availableModes": [{"id": "code", "name": "Code"}]},
        "configOptions": OPTIONS,
        "models": {"currentModelId": "m", "availableModels": [{"modelId": "m"}]},
    }

    assert state_after_setup(AgentState(title="Hello"), result) == AgentState(
        mode="code",
        modes=({"id": "code", "name": "Code"},),
        options=KEPT.options,
        model="m",
        models=({"modelId": "m"},),
        title="Hello",
    )
    assert state_after_setup(KEPT, None) == KEPT
    assert state_after_setup(KEPT, {"modes": {"currentModeId": 5.5}}) == KEPT


def test_what_was_kept_comes_back() -> None:
    assert restore_state(KEPT.to_record()) == KEPT
    assert AgentState().to_record() == {}
    assert restore_state({**KEPT.to_record(), "agent": {"name": "x"}}) == KEPT
    assert restore_state({"used": "many"}) == AgentState()


@given(
    kind=st.sampled_from(sorted(STATE_UPDATES)),
    fields=st.dictionaries(
        st.sampled_from(["availableCommands", "modeId", "configOptions", "used", "cost", "title"]),
        st.recursive(
            st.none() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    ),
)
def test_whatever_is_told_can_be_kept(kind: str, fields: dict[str, Any]) -> None:
    told = hear(KEPT, kind, **fields)

    assert restore_state(told.to_record()) == told


def test_lists_are_kept_as_far_as_they_fit() -> None:
    commands = [{"name": str(number), "description": "x" * 60_000} for number in range(10)]

    told = hear(AgentState(), "available_commands_update", availableCommands=commands)

    assert told.commands == tuple(commands[:4])
