"""How Holdfast describes itself as an agent: version, capabilities, modes and models."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.api import Defaults
from holdfast.domain.agents import LlmRuntime
from holdfast.domain.approvals import ApprovalMode, stricter_mode
from holdfast.domain.models import Model
from holdfast.domain.sessions import Session

Form = dict[str, Any]

VERSION: Final = 1
MODE: Final = "mode"
MODEL: Final = "model"

_MODES: Final[Mapping[ApprovalMode, tuple[str, str]]] = {
    ApprovalMode.DENY: ("Read only", "Changes are denied without asking."),
    ApprovalMode.ASK: ("Ask", "Asks before something is changed, run or sent."),
    ApprovalMode.EDITS: ("Edits", "Changes files without asking; asks about everything else."),
    ApprovalMode.AUTO: ("Auto", "Asks only about what always requires approval."),
}


def initialize_result(version: str) -> Form:
    """Return the reply to `initialize`; always offers our version, whatever was requested."""
    return {
        "protocolVersion": VERSION,
        "agentInfo": {"name": "holdfast", "title": "Holdfast", "version": version},
        "authMethods": [],
        "agentCapabilities": {
            "loadSession": True,
            "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
            "mcpCapabilities": {"http": True, "sse": False},
            "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
        },
    }


def session_modes(session: Session, models: Sequence[Model], defaults: Defaults) -> Form:
    """Return the current modes and options of a session."""
    available = [
        {"id": mode.value, "name": name, "description": description}
        for mode, name, description in _described_modes(defaults)
    ]
    return {
        "modes": {"currentModeId": session.approval.value, "availableModes": available},
        "configOptions": session_options(session, models, defaults),
    }


def session_options(session: Session, models: Sequence[Model], defaults: Defaults) -> list[Form]:
    """Return the options of a session: the model, and the mode for clients that only read options.

    An external agent chooses its model itself, so it has no model option.
    """
    modes = [
        {"value": mode.value, "name": name, "description": description}
        for mode, name, description in _described_modes(defaults)
    ]
    found = [_select(MODE, "Approvals", session.approval.value, modes)]
    if isinstance(session.agent.runtime, LlmRuntime):
        current = model_ref(session, models, defaults.model)
        named = {current: current} | {each.ref: each.display_name or each.ref for each in models}
        choices = [{"value": ref, "name": named[ref]} for ref in sorted(named)]
        found.append(_select(MODEL, "Model", current, choices))
    return found


def model_ref(session: Session, models: Sequence[Model], default: str) -> str:
    """Return the ref of the model that a session asks first."""
    runtime = session.agent.runtime
    chain = runtime.models if isinstance(runtime, LlmRuntime) else ()
    wanted = session.model_id or (chain[0].model_id if chain else None)
    known = {model.id: model.ref for model in models}
    return default if wanted is None else known.get(wanted, wanted)


def _select(id_: str, name: str, current: str, choices: list[Form]) -> Form:
    return {
        "id": id_,
        "name": name,
        "category": id_,
        "type": "select",
        "currentValue": current,
        "options": choices,
    }


def _described_modes(defaults: Defaults) -> Iterator[tuple[ApprovalMode, str, str]]:
    """Yield each mode with its name and description, as limited by the configured mode."""
    for mode, (name, description) in _MODES.items():
        held = stricter_mode(mode, defaults.approval)
        same = f'Same as {_MODES[held][0]} while the configuration sets approval = "{held}".'
        yield mode, name, description if held is mode else same
