"""Clients of a simulated world: they ask whoever lives, and again with the same key until told."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Protocol

from holdfast import Event, HoldfastError, OnBusy
from holdfast.domain.approvals import ApprovalMode, ApprovalState, Decision
from holdfast.domain.calls import CallState
from holdfast.domain.errors import StorageFull, Unavailable
from holdfast.domain.events import encode_payload
from holdfast.domain.ids import LOCAL_OWNER, SessionId
from holdfast.domain.messages import Message
from holdfast.domain.sessions import SessionRequest
from holdfast.services.calls import SettlementAction, SettlementRequest
from tests.torture.attempts import OK, Attempt, digest, meant
from tests.torture.clients.house import new_id, words_for
from tests.torture.simulated.processes import Floors, GoneError, Process
from tests.torture.simulated.worlds import World

AGENT = "simulated"
PAUSED = "SELECT 1 FROM sessions WHERE id = :id AND until < 0"
Ask = Callable[[Floors], Coroutine[Any, Any, Any]]


class Reachable(Protocol):
    """Whoever knows which processes live."""

    world: World

    async def reach(self) -> Process:
        """Return a process that can be asked, waiting for one."""


class Client:
    """One client with one session, and all that it was told."""

    def __init__(self, town: Reachable, number: int) -> None:
        self._town = town
        self._luck = town.world.luck
        self._name = f"c{number}"
        self.session = SessionId(new_id(self._luck))
        self.attempts: list[Attempt] = []
        self.heard: list[tuple[int, str]] = []

    async def live(self) -> None:
        """Open a session, say a few things, change the mind now and then, perhaps close it."""
        luck = self._luck
        mode = luck.choice((ApprovalMode.AUTO, ApprovalMode.ASK))
        wish = SessionRequest(approval=mode)
        await self._tell("open", self.session, "", lambda it: self._open(it, wish), lambda _: {})
        for _ in range(luck.choice((1, 2, 3, 4))):
            key, wished = new_id(luck), luck.choice(tuple(OnBusy))
            send = lambda it, key=key, wished=wished: it.messages.send(  # noqa: E731
                LOCAL_OWNER, self.session, words_for(key), id=key, on_busy=wished
            )
            await self._tell("send", key, words_for(key), send, _sent)
            await asyncio.sleep(luck.choice((0.0, 0.3, 3.0)) * luck.random())
            if luck.random() < 0.15:
                await self._asked(lambda it: it.sessions.interrupt(LOCAL_OWNER, self.session))
        if luck.random() < 0.2:
            close: Ask = lambda it: it.sessions.close(LOCAL_OWNER, self.session)  # noqa: E731
            await self._tell("close", "", "", close, lambda _: {})

    async def follow(self) -> None:
        """Hear the news of the session for ever, from wherever the line broke."""
        while True:
            process = await self._town.reach()
            # A line to a process that dies is a line that ends.
            hearing = process.begin(self._hear(await _floors(process)))
            try:
                await asyncio.wait([hearing])
            finally:
                hearing.cancel()
            await asyncio.sleep(0.05)

    async def _hear(self, floors: Floors | None) -> None:
        if floors is None:
            return
        after = self.heard[-1][0] if self.heard else 0
        try:
            async with aclosing(
                floors.events.follow(LOCAL_OWNER, self.session, after=after)
            ) as news:
                async for item in news:
                    if not isinstance(item, Event):
                        raise AssertionError(f"a gap where nothing was pruned: {item}")
                    self.heard.append((item.sequence, meant(encode_payload(item.payload))))
        except HoldfastError:
            # Not opened yet, or the house is in trouble: heard again from where this one ended.
            return

    async def _open(self, floors: Floors, wish: SessionRequest) -> Any:
        return await floors.sessions.open(LOCAL_OWNER, AGENT, wish, id=self.session)

    async def _tell(
        self, verb: str, key: str, body: str, ask: Ask, shown: Callable[[Any], dict[str, Any]]
    ) -> None:
        """Ask until there is an answer, and note the attempt either way."""
        outcome, answer = await self._asked(ask)
        self.attempts.append(
            Attempt(
                client=self._name,
                number=len(self.attempts),
                verb=verb,
                session=self.session,
                key=key,
                body=digest(body),
                outcome=outcome,
                answer=shown(answer) if outcome == OK else {},
            )
        )

    async def _asked(self, ask: Ask) -> tuple[str, Any]:
        while True:
            try:
                return OK, await reached(self._town, ask)
            except (GoneError, StorageFull, Unavailable):
                await asyncio.sleep(0.2)
            except HoldfastError as error:
                return str(error.code), None


class Visitor:
    """Somebody who looks in, answers what is asked, and puts right what is unknown."""

    def __init__(self, town: Reachable) -> None:
        self._town = town
        self._luck = town.world.luck

    async def live(self) -> None:
        """Look in for ever."""
        while True:
            await asyncio.sleep(0.5 + self._luck.random())
            try:
                await reached(self._town, self._answer)
                await reached(self._town, self._settle)
            except (GoneError, HoldfastError):
                # Somebody else was quicker, or nobody is there; next time.
                continue

    async def _answer(self, floors: Floors) -> None:
        waiting = await floors.approvals.list(LOCAL_OWNER, state=ApprovalState.WAITING)
        for each in waiting.items:
            self._town.world.pauses += bool(self._town.world.disk.asked(PAUSED, id=each.session_id))
            said = self._luck.choice((ApprovalState.ALLOWED, ApprovalState.DENIED))
            answer = Decision(state=said, by="visitor")
            await floors.approvals.answer(LOCAL_OWNER, each.session_id, each.id, answer)

    async def _settle(self, floors: Floors) -> None:
        unknown = await floors.calls.list(LOCAL_OWNER, state=CallState.UNKNOWN)
        for call in unknown.items:
            wish = SettlementRequest(how=self._luck.choice(tuple(SettlementAction)), by="visitor")
            await floors.calls.settle(LOCAL_OWNER, call.session_id, call.id, wish)


async def reached(town: Reachable, ask: Callable[[Floors], Awaitable[Any]]) -> Any:
    """Ask a process that lives; it may die over it."""
    process = await town.reach()
    floors = await process.ready()

    async def work() -> Any:
        return await ask(floors)

    return await process.asked(work())


async def _floors(process: Process) -> Floors | None:
    try:
        return await process.ready()
    except GoneError:
        return None


def _sent(message: Message) -> dict[str, Any]:
    return {"sequence": message.sequence, "hash": message.hash, "turn": message.turn}
