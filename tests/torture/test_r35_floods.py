"""R35: an agent that floods fills neither the memory nor the way of the others."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.rpc.framing import HEAD, HEAD_MARGIN, LINE_LIMIT, LineSplitter
from tests.acp.harness import END
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew

pytestmark = pytest.mark.slow

MEMORY = 200
# Below this nobody notices, and twice of it is noise.
SOON = 0.05
# Of fewer the slowest hundredth is one, and may be anybody's.
CALM_TURNS = 200
MEBIBYTE = "x" * (1 << 20)
UPDATES_MOST = 100_000
BYTES_MOST = 64 << 20
# The arguments of a call with very many values, as one line; and news of the call that say little.
LARGE_CALL = (
    '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"peer-session-1","update":'
    '{"sessionUpdate":"tool_call","toolCallId":"t","status":"in_progress","rawInput":{"a":['
    + ",".join(["{}"] * 60_000)
    + "]}}}}\n"
)
NEWS: list[Any] = [
    {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": status}}
    for status in ("one", "two")
]


@dataclass(frozen=True)
class Flood:
    """What an agent pours out in a turn, and how the turn ends then."""

    steps: list[Any]
    stop: str = "stop"
    failure: str | None = None


def flood(kind: str, part: int) -> Flood:
    """Return a flood at so small a part of its size."""
    if kind == "updates":
        count = 1_000_000 // part
        is_too_much = count > UPDATES_MOST
        return Flood(
            [{"texts": count}, END],
            stop="error" if is_too_much else "stop",
            failure="agent_flood" if is_too_much else None,
        )
    if kind == "no end of line":
        return Flood([{"raw": MEBIBYTE, "times": 2048 // part}, {"raw": "\n"}, END])
    if kind == "a line too long":
        # With the reply in it, which is lost with the line.
        head = '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn","padding":"'
        padding = LINE_LIMIT + 1 - len(head) - 3
        line = [{"raw": head}, {"raw": MEBIBYTE, "times": padding >> 20}]
        rest = [{"raw": "x" * (padding % (1 << 20))}, {"raw": '"}}\n'}]
        return Flood([*line, *rest, "until_cancel"], stop="error", failure="agent_line_too_long")
    if kind == "complaints":
        return Flood([{"stderr": MEBIBYTE, "times": 2048 // part}, END])
    if kind == "depth":
        deep = '{"jsonrpc":"2.0","method":"session/update","params":' + '{"a":' * 100_000
        lines = [{"raw": "[" * (1 << 20) + "\n"}, {"raw": deep + "1" + "}" * 100_001 + "\n"}]
        return Flood([{"repeat": {"count": 100 // part, "steps": lines}}, END])
    if kind == "bytes":
        # A plan, of which little is kept: it is about what comes, and not about what is written.
        sizes = [
            {"sessionUpdate": "plan", "entries": [{"content": f"{n}" + MEBIBYTE}]} for n in "01"
        ]
        count = 2048 // part // 2
        is_too_much = 2 * count > BYTES_MOST >> 20
        steps = [{"update": each} for each in sizes]
        return Flood(
            [{"repeat": {"count": count, "steps": steps}}, END],
            stop="error" if is_too_much else "stop",
            failure="agent_flood" if is_too_much else None,
        )
    if kind == "a large call":
        return Flood(
            [{"raw": LARGE_CALL}, {"repeat": {"count": 2_000 // part, "steps": NEWS}}, END]
        )
    ask = {"method": "fs/read_text_file", "params": {"sessionId": "$session", "path": "/no"}}
    return Flood(
        [{"repeat": {"count": 100_000 // part, "steps": [{"ask": ask | {"wait": False}}]}}, END]
    )


KINDS = (
    "updates",
    "bytes",
    "no end of line",
    "a line too long",
    "a large call",
    "complaints",
    "depth",
    "questions",
)


@proves("R35")
@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_harms_nobody_but_who_floods(
    tmp_path: Path, crew: Crew, sized: Sized, tell: Tell, kind: str
) -> None:
    part, calm = sized(test=20, torture=1), sized(test=40, torture=CALM_TURNS)
    for number in range(sized(test=1, torture=1, release=5)):
        poured = flood(kind, part)
        told = flooded(crew, tmp_path / str(number), poured, calm=calm)

        tell(
            f"{kind}: {told['stop']}/{told['failure']}, at most {told['peak']} MiB, "
            f"others waited {told['during'] * 1000:.0f} ms instead of {told['before'] * 1000:.0f}"
        )
        assert (told["stop"], told["failure"]) == (poured.stop, poured.failure)
        assert told["peak"] <= MEMORY
        assert told["during"] < sized.within(2 * max(told["before"], SOON))
        assert (told["again"], told["status"]) == ("new", "idle")


def flooded(crew: Crew, folder: Path, poured: Flood, *, calm: int) -> dict[str, Any]:
    """Play a flood in a process of its own and return what that tells."""
    folder.mkdir()
    steps, answer = folder / "steps.json", folder / "answer.json"
    steps.write_text(json.dumps(poured.steps), "utf-8")
    options = {"folder": folder / "place", "steps": steps, "answer": answer}
    client = crew.start("flooding", **options, calm=calm)
    assert client.wait(timeout=2 * PATIENCE) == 0, crew.log_of(client)[-2000:]
    told: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    return told


@proves("R35")
def test_control_a_splitter_without_a_limit_keeps_it_all(tell: Tell) -> None:
    bound, unbound = LineSplitter(1 << 20), LineSplitter(1 << 40)
    for splitter in (bound, unbound):
        for _ in range(64):
            splitter.feed(MEBIBYTE.encode())

    kept = [len(splitter._begun) for splitter in (bound, unbound)]
    tell(f"control: {kept[1] >> 20} MiB without a limit, {kept[0]} bytes with one")
    assert kept == [HEAD + HEAD_MARGIN, 64 << 20]
