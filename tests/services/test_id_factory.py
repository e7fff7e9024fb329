"""Ids that we mint."""

from pathlib import Path
from uuid import UUID

import pytest

from holdfast.api import Holdfast
from holdfast.domain.events import Event
from tests.houses import played
from tests.marks import demands
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio


@demands("S2-020b", "S2-040", "S2-050c", "S2-060", "S2-120b")
async def test_every_id_we_mint_is_a_uuid_of_version_7_of_its_time(
    holdfast: Holdfast, clock: SettableClock, tmp_path: Path
) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    repo = await holdfast.repos.add(holdfast.owner, str(tmp_path / "tree"), at_terminal=True)
    session = await holdfast.open()
    await holdfast.send(session.id, "2+2?")
    rows = await played(holdfast, session.id)
    events = (await holdfast.events.list(holdfast.owner, session.id)).items

    ids = [repo.id, session.agent_id, session.id, *(row.id for row in rows)]
    ids += [event.id for event in events if isinstance(event, Event)]

    now = clock.now().timestamp() * 1000
    assert {UUID(each).version for each in ids} == {7}
    assert {abs((UUID(each).int >> 80) - now) < 2 for each in ids} == {True}
    assert len(set(ids)) == len(ids)
