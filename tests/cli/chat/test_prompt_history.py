"""What was said before, for the arrow keys."""

import pytest

from holdfast.api import Holdfast
from holdfast.cli.chat.repl import PromptHistory
from holdfast.domain.errors import Code, Unavailable
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio


async def test_the_newest_words_of_the_last_sessions_come_first(
    quiet: Holdfast, clock: SettableClock
) -> None:
    for texts in (("first", "again", "again"), ("second", "x" * 20_000)):
        clock.advance(minutes=1)
        session = await quiet.open()
        for text in texts:
            await quiet.send(session.id, text)
    past = PromptHistory(quiet)
    past.append_string("just now")

    lines = [line async for line in past.load()]

    assert lines == ["just now", "second", "again", "first"]
    assert [line async for line in past.load()] == lines
    assert list(past.load_history_strings()) == []


async def test_who_cannot_be_reached_is_no_reason_to_fail(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise Unavailable(Code.SYSTEM_LIMIT, "not now")

    monkeypatch.setattr(type(quiet.sessions), "list", fail)

    assert [line async for line in PromptHistory(quiet).load()] == []
