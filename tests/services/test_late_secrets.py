"""Secrets that become known in the middle of a turn: from then on nothing says them."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.events import StepDelta, TurnEnded
from holdfast.domain.tools import ToolClass
from holdfast.ports.tools import RequestedCall
from tests.houses import news_until, payloads, played
from tests.keychains import Known, using
from tests.tooled import a_config, asks, call, open_tooled, own_tool, says, started

pytestmark = pytest.mark.anyio

SECRET = "canary-9876543210-abcdefghijklmnopqrstuvwxyz"


async def test_a_secret_that_a_tool_looked_up_is_in_no_two_pieces_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looks_up(_: RequestedCall) -> Any:
        assert await house.secrets.of_server("x") is not None
        return {"done": True}

    # Without one nobody would look for a keychain.
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    keychain = Known()
    keychain.set_password("holdfast", "mcp:x", SECRET)
    answer = says("word " * 50 + SECRET + " end", chunks=100)
    config = a_config(tmp_path / "home", asks(call("zap", line="1")), answer)
    zap = own_tool("zap", looks_up, tool_class=ToolClass.READ)
    with using(keychain):
        async with open_tooled(config, zap) as house:
            session = await started(house, tmp_path / "desk", "zap")
            rows = await played(house, session.id)
            news = payloads(await news_until(house, session.id, TurnEnded))

    told = [each.text for each in news if isinstance(each, StepDelta)]
    assert len(told) > 1
    assert "".join(told) == "word " * 50 + "[secret:mcp:x] end"
    assert SECRET not in repr(rows)
