"""`read_media` and `notify`: content for the model, and a message for the user."""

from pathlib import Path

import pytest

from holdfast import open_holdfast
from holdfast.domain.messages import ToolResult, media_handle
from tests.houses import played
from tests.marks import demands
from tests.tooled import a_config, asks, call, outcomes, says, started

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n...."


@demands("S0-160")
async def test_an_agent_looks_at_a_picture_and_shows_a_message(home: Path, tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "dot.png").write_bytes(PNG)
    (desk / "notes.txt").write_text("hold fast")
    config = a_config(
        home,
        asks(
            call("read_media", "m1", path="dot.png"),
            call("read_media", "m2", path="notes.txt"),
            call("read_media", "m3", path="../out.png"),
            call("notify", "n1", message="Half way."),
        ),
        says("Done."),
    )
    async with open_holdfast(config=config) as house:
        fields = {"name": "Looker", "tools": ["read_media", "notify"], "grant": None}
        agent = await house.agents.create(house.owner, fields)
        session = await started(house, desk, agent=agent.slug)
        rows = await played(house, session.id)
        handle = media_handle(PNG)
        kept = await house.media.read(house.owner, session.id, handle)

    assert outcomes(rows) == [
        "read_media ok",
        "read_media error/invalid_arguments",
        "read_media denied/outside_scope",
        "notify ok",
    ]
    (first, *_) = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    assert first.result == {"mime_type": "image/png", "ref": handle, "byte_length": len(PNG)}
    assert kept == PNG
