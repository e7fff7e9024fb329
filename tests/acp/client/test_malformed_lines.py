"""Lines of every form: each is read or skipped, and a turn is what was said in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.events import FailureCode
from holdfast.domain.sessions import Status
from tests.acp.harness import END, aboard
from tests.acp.steps import does
from tests.houses import texts

pytestmark = pytest.mark.anyio

MEBIBYTE = "x" * (1 << 20)
REFUSED = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32600, "message": "batches are not supported"},
}


def said(text: str, **beside: Any) -> str:
    """Return the line with a piece of the answer, without its end."""
    content = {"type": "text", "text": text}
    update = {"sessionUpdate": "agent_message_chunk", "content": content, **beside}
    params = {"sessionId": "peer-session-1", "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params})


def answer(id_: Any, stop: str = "refusal") -> dict[str, Any]:
    """Return the step that answers something."""
    return {"line": {"jsonrpc": "2.0", "id": id_, "result": {"stopReason": stop}}}


# Said between the words "one, " and "two." of a turn.
BETWEEN: dict[str, list[Any]] = {
    "a second answer, and one to nothing": [answer(1), answer(999), answer("3"), answer(-3)],
    "an answer without an id": [{"line": {"jsonrpc": "2.0", "result": {"stopReason": "refusal"}}}],
    "no text at all": [{"raw": "\r\n\n  \n\t\r\n"}],
    "bytes that are no text": [{"hex": "fffe0a7b22c3280a"}, {"hex": "00" * 8 + "0a"}],
    "values that are no message": [{"raw": '"text"\n7\nnull\ntrue\n'}, {"line": {}}],
}
WHOLE = [("user", "hello"), ("assistant", "one, two.")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", BETWEEN)
async def test_what_is_no_message_changes_nothing(tmp_path: Path, case: str) -> None:
    steps = [{"text": "one, "}, *BETWEEN[case], {"text": "two."}, END, answer("$id")]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        again = await ship.tell(session, "again")
        now = await ship.now(session)

    assert (texts(rows), texts(again[2:])) == (WHOLE, [("user", "again"), WHOLE[1]])
    assert (now.status, len(ship.peer.log("start"))) == (Status.IDLE, 1)
    assert [each for each in ship.peer.got() if "error" in each] == []


async def test_an_array_is_refused_once_and_the_turn_goes_on(tmp_path: Path) -> None:
    steps = [{"text": "one, "}, {"raw": f"[{said('no')}]\n"}, {"text": "two."}, END]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        rows = await ship.tell(await ship.open())

    assert texts(rows) == WHOLE
    assert [each for each in ship.peer.got() if "error" in each] == [REFUSED]


async def test_an_error_without_an_id_ends_the_only_prompt(tmp_path: Path) -> None:
    lost = {"line": {"jsonrpc": "2.0", "error": {"code": -32603, "message": "lost it"}}}
    async with aboard(tmp_path, on={"session/prompt": [[lost], [END]]}) as ship:
        session = await ship.open()
        await ship.tell(session)
        ended = await ship.ended(session)

    assert ended.failure is not None
    assert (ended.failure.code, "lost it" in ended.failure.message) == (
        FailureCode.AGENT_ERROR,
        True,
    )


async def test_every_id_is_answered_also_one_of_ours(tmp_path: Path) -> None:
    ids: list[Any] = [0, "", "text", None, 3, -1, 1.5]
    path = str(tmp_path / "tree" / "a")
    asks = [does("fs/read_text_file", f"{id_!r}", path=path, wait=False) for id_ in ids]
    for ask, id_ in zip(asks, ids, strict=True):
        ask["ask"]["id"] = id_
    waits = [{"await": f"{id_!r}"} for id_ in ids]
    async with aboard(tmp_path, on={"session/prompt": [*asks, *waits, END]}) as ship:
        (ship.tree / "a").write_text("words")
        await ship.tell(await ship.open())

    answers = ship.peer.answers()
    assert {name: each["result"] for name, each in answers.items()} == {
        f"{id_!r}": {"content": "words"} for id_ in ids
    }
    assert [answers[f"{id_!r}"]["id"] for id_ in ids] == ids


async def test_lines_may_come_together_and_in_pieces(tmp_path: Path) -> None:
    together = {"raw": f"{said('one, ')}\r\n{said('two.')}\n"}
    async with aboard(
        tmp_path, on={"session/prompt": [together, END]}, chunk={"size": 3, "pause": 0.001}
    ) as ship:
        rows = await ship.tell(await ship.open())

    assert texts(rows) == WHOLE


@pytest.mark.parametrize(("mebibytes", "is_read"), [(20, True), (40, False)])
async def test_a_long_line_is_read_or_dropped(
    tmp_path: Path, mebibytes: int, is_read: bool
) -> None:
    head, tail = said("one, ", _meta={"much": "|"}).split("|")
    long = [{"raw": head}, {"raw": MEBIBYTE, "times": mebibytes}, {"raw": f"{tail}\n"}]
    async with aboard(tmp_path, on={"session/prompt": [*long, {"text": "two."}, END]}) as ship:
        rows = await ship.tell(await ship.open())

    assert texts(rows) == (WHOLE if is_read else [WHOLE[0], ("assistant", "two.")])
