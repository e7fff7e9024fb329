"""R37: garbage between messages changes nothing: not their order, not what becomes of them."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.rpc.framing import JsonRpcNotification, JsonRpcRequest, Junk
from tests.acp.harness import END, aboard
from tests.acp.raw_peer import connected
from tests.houses import texts
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.garbage import by_chance, by_hand

pytestmark = pytest.mark.slow

REFUSED = {"code": -32600, "message": "batches are not supported"}


@proves("R37")
def test_a_conversation_stays_in_step(sized: Sized, luck: random.Random, tell: Tell) -> None:
    hand, chance = (
        by_hand(),
        by_chance(luck, sized(quick=50, test=200, torture=2_000, release=20_000)),
    )

    arrays, wrong = asyncio.run(_conversed([*hand, *chance]))

    tell(f"{len(hand)} + {len(chance)} lines, {arrays} refused, {len(wrong)} out of step")
    assert wrong == []


async def _conversed(garbage: list[bytes]) -> tuple[int, list[str]]:
    """Say each line while a request of either side is open; both have to find their answers."""
    arrays, wrong = 0, []
    async with connected() as (connection, far):
        incoming = connection.incoming()
        for number, line in enumerate(garbage):
            asking = asyncio.create_task(connection.request("ours", number))
            asked = await far.hear()
            await far.say_bytes(line + b"\n")
            await far.say({"id": number, "method": "theirs", "params": number})
            item: Any = await anext(incoming)
            while not isinstance(item, JsonRpcRequest) or item.method != "theirs":
                if isinstance(item, Junk) or not isinstance(item, JsonRpcNotification):
                    wrong.append(f"{line[:60]!r} was taken for {item}")
                item = await anext(incoming)
            await connection.answer(item, number)
            heard = await far.hear()
            if heard == {"jsonrpc": "2.0", "id": None, "error": REFUSED}:
                arrays += 1
                heard = await far.hear()
            await far.say({"id": asked["id"], "result": number})
            found = (await asking, heard["id"], heard["result"])
            if found != (number, number, number):
                wrong.append(f"{line[:60]!r} led to {found}")
    return arrays, wrong


@proves("R37")
def test_a_turn_with_garbage_is_recorded_like_one_without(
    tmp_path: Path, sized: Sized, luck: random.Random, tell: Tell
) -> None:
    garbage = [*by_hand(), *by_chance(luck, sized(test=200, torture=2_000, release=20_000))]
    steps: list[Any] = []
    for number, line in enumerate(garbage):
        steps += [{"hex": (line + b"\n").hex()}, {"text": f"{number} "}]

    rows, log = asyncio.run(_played(tmp_path, [*steps, END]))

    whole = "".join(f"{number} " for number in range(len(garbage)))
    tell(f"a turn with {len(garbage)} lines between its words")
    assert rows == [("user", "hello"), ("assistant", whole)]
    assert log == []


async def _played(folder: Path, steps: list[Any]) -> tuple[list[Any], list[Any]]:
    """Play one turn; return its rows, and the errors that the agent received."""
    async with aboard(folder, on={"session/prompt": steps}) as ship:
        rows = await ship.tell(await ship.open())
        answers = [each for each in ship.peer.got() if "error" in each]
    return texts(rows), [each for each in answers if each["error"] != REFUSED]


@proves("R37")
def test_control_a_plain_reader_is_out_of_step(luck: random.Random, tell: Tell) -> None:
    lost = 0
    for line in [*by_hand(), *by_chance(luck, 200)]:
        try:
            json.loads(line)["method"]
        except (ValueError, TypeError, KeyError, RecursionError):
            lost += 1

    tell(f"control: a plain reader stumbles over {lost} lines")
    assert lost > 300
