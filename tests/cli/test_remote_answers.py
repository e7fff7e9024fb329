"""What a far house makes of answers that say more than yes."""

import json
from typing import Any

import pytest

from holdfast.cli.remote.sessions import RemoteSessions
from holdfast.cli.remote.values import OWNER
from holdfast.client import Client
from holdfast.domain.ids import SessionId
from holdfast.http.openapi.examples import EXAMPLES
from tests.client.servers import QUICK, answering, impostor

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("turn", "settled", "is_settled"), [(2, 1, False), (2, 2, True), (None, 1, True)]
)
async def test_a_turn_that_ends_later_is_known_to_end_later(
    turn: int | None, settled: int, is_settled: bool
) -> None:
    session: dict[str, Any] = {**EXAMPLES["SessionForm"], "turn": 2, "settled": settled}
    told = {"session": session, "interrupted": turn is not None, "turn": turn}
    act = answering(200 if is_settled else 202, json.dumps(told))
    async with impostor(act) as server, Client(server.url, "t", timeouts=QUICK) as client:
        done = await RemoteSessions(client).interrupt(OWNER, SessionId(session["id"]))

    assert (done.turn, done.is_settled, done.session.settled) == (turn, is_settled, settled)
