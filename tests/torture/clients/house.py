"""A client of the library: asks, and writes down what it asks before and what it was told after."""

import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import Event, Gap, Holdfast, HoldfastError, OnBusy, Session
from holdfast.config import Config, load
from holdfast.domain.events import encode_payload
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionRequest
from holdfast.services.session_lifecycle import Interruption, Resumption
from tests.torture.attempts import Record, meant
from tests.torture.machine import DATABASE

SCRIPT = """
match:
  - contains: "slow "
    step: {{delay_ms: 150, text: "{long}"}}
  - contains: "tardy "
    step: {{delay_ms: 1500, text: "{long}"}}
  - contains: "asleep "
    step: {{delay_ms: 10000, text: "{long}"}}
  - contains: "endless "
    step: {{text: "{endless}"}}
  - contains: "long "
    step: {{text: "{long}"}}
  - contains: "handy "
    step: {{tool_calls: [{{name: write_file, arguments: {{path: "notes.txt", content: "x"}}}}]}}
  - contains: "broken "
    step: {{text: "I was about to say", error: unavailable}}
steps:
  - {{text: "a short answer", repeat: 1000000}}
"""


WORDS = "and so on, word by word, "


def settings(home: Path, **changes: Any) -> Config:
    """Return the configuration of a home whose model is scripted."""
    script = home.parent / "model.yaml"
    if not script.exists():
        draft = script.with_suffix(f".{random.randrange(1 << 32)}")
        draft.write_text(SCRIPT.format(long=WORDS * 80, endless=WORDS * 2_000))
        draft.replace(script)
    given = {"home": home, "default_model": f"scripted:{script}", **changes}
    # Of the environment only where rows are kept, because rows are run on both stores.
    return load(given, environment={DATABASE: url} if (url := os.environ.get(DATABASE)) else {})


# How a message's id begins says what its text asks for, so that a retry has the same body.
BEGINNINGS = {"slow": "0", "long": "3", "broken": "5", "tardy": "66", "short": "f"}
# Nobody gets one of these by chance.
BEGINNINGS |= {"asleep": "ee000001", "endless": "ee000002", "handy": "ee000003"}


def new_id(luck: random.Random, kind: str = "") -> str:
    """Return an id of the client's own choice; a message's may ask for a kind of answer."""
    beginning = BEGINNINGS.get(kind, "")
    text = f"{beginning}{luck.getrandbits(128):032x}"[:32]
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def words_for(key: str) -> str:
    """Return the text of a message by its id."""
    kinds = [kind for kind, beginning in BEGINNINGS.items() if key.startswith(beginning)]
    return f"{kinds[0] if kinds else 'plain'} message {key}"


@dataclass(frozen=True)
class Question:
    """What is asked, as it is written down before."""

    verb: str
    session: str
    key: str
    body: str = ""


class Client:
    """One client with its record; every verb survives being refused."""

    def __init__(self, house: Holdfast, record: Record, streams: Record | None = None) -> None:
        self.house = house
        self._record = record
        self._streams = streams
        self._readers = 0
        self.refused: Callable[[HoldfastError], None] | None = None

    async def open(self, key: str, request: SessionRequest | None = None) -> Any:
        """Open a session of that id."""
        call = partial(self.house.open, request=request, id=key)
        return await self._ask(Question("open", key, key), call, _opened)

    async def send(
        self, session: str, key: str, text: str | None = None, *, on_busy: OnBusy = OnBusy.QUEUE
    ) -> Any:
        """Send a message of that id."""
        body = text if text is not None else words_for(key)

        call = partial(self.house.send, SessionId(session), body, id=key, on_busy=on_busy)
        return await self._ask(Question("send", session, key, body), call, _sent)

    async def fork(self, session: str, key: str) -> Any:
        """Fork a session where it ends now; the fork has that id."""
        fork = self.house.sessions.fork
        call = partial(fork, self.house.owner, SessionId(session), id=key)
        return await self._ask(Question("fork", session, key), call, _opened)

    async def act(self, verb: str, session: str) -> Any:
        """Interrupt, close, resume or delete a session."""
        method = getattr(self.house.sessions, verb)
        call = partial(method, self.house.owner, SessionId(session))
        answer = _gone if verb == "delete" else _status
        told = await self._ask(Question(verb, session, ""), call, answer)
        return told.session if isinstance(told, Interruption | Resumption) else told

    async def follow(self, session: str, after: int, *, until: Callable[[Any], bool]) -> int:
        """Follow a session's news, writing down what comes; return the last number seen."""
        assert self._streams is not None
        self._readers += 1
        who = {"session": session, "reader": self._readers}
        self._streams.note(**who, after=after)
        stream = self.house.follow(SessionId(session), after=after)
        try:
            async for item in stream:
                self._streams.note(**who, **shown(item))
                after = item.to_sequence if isinstance(item, Gap) else item.sequence
                if until(item):
                    break
        finally:
            await stream.aclose()
        return after

    async def _ask(
        self,
        asked: Question,
        call: Callable[[], Awaitable[Any]],
        answer: Callable[[Any], dict[str, Any]],
    ) -> Any:
        number = self._record.attempt(asked.verb, asked.session, asked.key, asked.body)
        try:
            result = await call()
        except HoldfastError as error:
            self._record.answer(number, str(error.code))
            if self.refused is not None:
                self.refused(error)
            return None
        self._record.answer(number, "ok", **answer(result))
        return result


def shown(item: Event | Gap) -> dict[str, Any]:
    """Return an item of a stream as it is written down."""
    if isinstance(item, Gap):
        return {"first": item.from_sequence, "last": item.to_sequence}
    return {
        "first": item.sequence,
        "last": item.sequence,
        "digest": meant(encode_payload(item.payload)),
    }


def _opened(session: Session) -> dict[str, Any]:
    forked = session.forked_from
    return {
        "created_at": session.created_at.isoformat(),
        "at": forked.sequence if forked else None,
    }


def _sent(message: Any) -> dict[str, Any]:
    return {
        "sequence": message.sequence,
        "hash": message.hash,
        "turn": message.turn,
        "created_at": message.created_at.isoformat(),
    }


def _status(answer: Session | Interruption | Resumption) -> dict[str, Any]:
    session = answer if isinstance(answer, Session) else answer.session
    return {"status": str(session.status)}


def _gone(sessions: tuple[str, ...]) -> dict[str, Any]:
    return {"gone": list(sessions)}
