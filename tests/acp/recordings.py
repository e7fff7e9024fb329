"""Recorded wires, replayed through framing and translation; `python -m tests.acp.recordings` writes
what they become beside each, for somebody to look at what has changed.

A line of a wire says who spoke and what: `{"who": "agent" or "client", "line": {…}}`. A wire is one
prompt and all that followed; one without a prompt is not replayed.
"""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.acp.client.agent_state import AgentState
from holdfast.acp.client.lenient_json import read_list, read_object
from holdfast.acp.client.translator import Translator
from holdfast.acp.rpc.framing import (
    JsonRpcNotification,
    JsonRpcReply,
    JsonRpcRequest,
    parse_line,
)
from holdfast.domain.drafts import Draft
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.ids import CallId
from tests.acp.session_updates import a_ground, numbered

WIRES: Final = Path(__file__).with_name("wires")
GOLDEN: Final = ".drafts.jsonl"
_DEATH: Final = Failure(code=FailureCode.AGENT_DIED, message="The wire ends here.")
_TICK: Final = 0.1


def wires() -> list[Path]:
    """Return every wire that holds a prompt."""
    found = (path for path in sorted(WIRES.rglob("*.jsonl")) if not path.name.endswith(GOLDEN))
    return [path for path in found if '"session/prompt"' in path.read_text()]


def golden(wire: Path) -> Path:
    """Return where the drafts of a wire are written down."""
    return wire.with_name(wire.stem + GOLDEN)


def replayed(wire: Path) -> list[dict[str, Any]]:
    """Return what a wire becomes: drafts in their order, then the state and what was counted."""
    replaying = _Replaying()
    for line in wire.read_text().splitlines():
        said = json.loads(line)
        replaying.hear(said["who"], said["line"])
    return [*map(shown, replaying.finished()), replaying.rest()]


def shown(draft: Draft) -> dict[str, Any]:
    """Return a draft as one line of a golden list; what is as always is left out."""
    found = {
        each.name: getattr(draft, each.name)
        for each in msgspec.structs.fields(draft)
        if getattr(draft, each.name) != each.default
    }
    return {"draft": type(draft).__name__, **msgspec.to_builtins(found)}


class _Replaying:
    """One wire, line by line, a tenth of a second apart."""

    def __init__(self) -> None:
        self._translator = Translator(a_ground(), agent_state=AgentState(), new_id=numbered())
        self._drafts: list[Draft] = []
        self._now = 0.0
        self._prompt: object = None
        self._asked: dict[object, tuple[CallId, frozenset[object]]] = {}
        self._is_cancelled = False

    def hear(self, who: str, line: dict[str, Any]) -> None:
        """Take in a line, as bytes: it is read like any other."""
        self._now += _TICK
        deadline = self._translator.deadline
        if deadline is not None and deadline <= self._now:
            self._drafts += self._translator.flush(now=self._now)
        message = parse_line(msgspec.json.encode(line))
        if who == "client":
            self._hear_us(message)
        else:
            self._hear_them(message)

    def _hear_us(self, message: object) -> None:
        if isinstance(message, JsonRpcRequest) and message.method == "session/prompt":
            self._prompt = message.id
        elif isinstance(message, JsonRpcNotification) and message.method == "session/cancel":
            self._is_cancelled = True
        elif isinstance(message, JsonRpcReply) and message.id in self._asked:
            call_id, allowing = self._asked.pop(message.id)
            outcome = read_object(read_object(message.result).get("outcome"))
            if outcome.get("optionId") not in allowing:
                self._translator.deny(call_id)

    def _hear_them(self, message: object) -> None:
        translator = self._translator
        if isinstance(message, JsonRpcNotification) and message.method == "session/update":
            self._drafts += translator.update(message.params, now=self._now)
        elif isinstance(message, JsonRpcRequest) and message.method == "session/request_permission":
            params = read_object(message.params)
            asked = translator.request(params.get("toolCall"), now=self._now)
            options = map(read_object, read_list(params.get("options")))
            allowing = (each for each in options if str(each.get("kind")).startswith("allow"))
            self._asked[message.id] = asked.id, frozenset(each["optionId"] for each in allowing)
            self._drafts += asked.drafts
        elif isinstance(message, JsonRpcReply) and message.id == self._prompt:
            if message.error:
                translator.end_with_error(message.error, is_cancelled=self._is_cancelled)
            else:
                translator.end(message.result, is_cancelled=self._is_cancelled)

    def finished(self) -> list[Draft]:
        """Return all drafts; a wire that breaks off is an agent that died."""
        end = self._translator.fail(_DEATH)
        return [*self._drafts, *end.drafts, end.outcome]

    def rest(self) -> dict[str, Any]:
        """Return what is known beside the drafts."""
        translator = self._translator
        return {
            "told": translator.agent_state.to_record(),
            "counts": dict(sorted(translator.counts.items())),
        }


def main() -> None:
    """Write the golden lists anew."""
    for wire in wires():
        lines = (json.dumps(each, ensure_ascii=False) for each in replayed(wire))
        golden(wire).write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
