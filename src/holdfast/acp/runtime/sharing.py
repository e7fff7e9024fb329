"""Programs that several sessions share: who may sit in one together, and who ends it.

Only those sit together for whom the very same program would be started: of one owner and agent, in
the same repository, with the same words, variables and grants. So nobody reaches further by it.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import asdict, replace

from holdfast.acp.process.identities import MARK
from holdfast.acp.process.launching import Start
from holdfast.acp.process.program import PATIENT, Program
from holdfast.acp.runtime.strands import Strand, Trunk
from holdfast.acp.transport.censors import Censor
from holdfast.acp.transport.connection import Bounds
from holdfast.domain.agent_processes import ProcessExit, ProcessIdentity
from holdfast.ports import TurnInput

# What a program is told before its end.
Farewell = Callable[[], Awaitable[object]]
# Is shown each line as it came.
Listener = Callable[[bytes], None]

_LAST_WORDS: Final = 1.5
# The program of a session that has left it goes on without it.
LEFT: Final = ProcessExit(reason="left")


def share_key(turn: TurnInput, owner: str, start: Start, capabilities: Mapping[str, Any]) -> str:
    """Return what is the same for all who may share a program, and for nobody else."""
    given = asdict(start) | {"limits": asdict(start.limits)}
    # Who it is started for is not what it is started with.
    given["environment"] = {n: value for n, value in start.environment.items() if n != MARK}
    grants = turn.place.grants if turn.place is not None else ()
    whole = [owner, turn.agent.id, turn.agent.grant, grants, given, capabilities]
    # Hashed, because there are secrets in it.
    return hashlib.sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()


class SharedProgram:
    """A program, and who sits in it; the last one who leaves ends it."""

    def __init__(self, program: Program, seats: "list[Seat]") -> None:
        self.program = program
        self.introduction: Mapping[str, Any] = {}
        self._trunk = Trunk(program.connection)
        self._seats = seats
        self._is_closing = False

    @classmethod
    async def spawn(
        cls, start: Start, mark: str, bounds: Bounds, censor: Censor
    ) -> "SharedProgram":
        """Start a program that bears a mark of its own and not a session's; raises `NotStarted`."""
        seats: list[Seat] = []
        program = await Program.spawn(
            replace(start, environment={**start.environment, MARK: mark}),
            bounds=bounds,
            on_line=partial(_show, seats),
            censor=censor,
        )
        program.birth = replace(program.birth, mark=mark)
        return cls(program, seats)

    @property
    def is_open(self) -> bool:
        """Tell whether one more may sit down."""
        return not self._is_closing and not self._is_gone

    def seat(self, listener: Listener | None) -> "Seat":
        """Return a place for one more."""
        seat = Seat(self, self._trunk.strand(), listener)
        self._seats.append(seat)
        return seat

    async def leave(
        self, seat: "Seat", farewell: Farewell | None, *, is_for_all: bool
    ) -> ProcessExit:
        """Let one go, and the program with the last; `is_for_all` ends it under all of them."""
        self._is_closing |= is_for_all or self._seats == [seat]
        try:
            if self._is_gone:
                # How it ended is the same for all of them: nobody ends it before it has said so.
                await asyncio.wait([self.program.exited], timeout=_LAST_WORDS)
            if self._is_closing or self._is_gone:
                return await self.program.end(farewell=farewell)
            if farewell is not None:
                with suppress(Exception):
                    async with asyncio.timeout(PATIENT.farewell):
                        await farewell()
            return LEFT
        finally:
            await self._vacate(seat)

    async def _vacate(self, seat: "Seat") -> None:
        if seat in self._seats:
            self._seats.remove(seat)
        await self._trunk.drop(seat.strand)
        if not self._seats:
            self._is_closing = True
            await self.program.end()
            await self._trunk.aclose()

    @property
    def _is_gone(self) -> bool:
        return self.program.connection.lost is not None or self.program.exited.done()


class Seat:
    """One session's place in a shared program."""

    def __init__(self, shared: SharedProgram, strand: Strand, listener: Listener | None) -> None:
        self.shared = shared
        self.strand = strand
        self.listener = listener

    async def leave(self, farewell: Farewell | None, *, is_for_all: bool) -> ProcessExit:
        """Leave the program; a second time nothing happens any more."""
        return await self.shared.leave(self, farewell, is_for_all=is_for_all)


def _show(seats: list[Seat], line: bytes) -> None:
    """Show a line to all who want to see it."""
    for seat in seats:
        if seat.listener is not None:
            seat.listener(line)


class Shares:
    """The shared programs that live in this process."""

    def __init__(self) -> None:
        self._programs: dict[str, SharedProgram] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, key: str) -> asyncio.Lock:
        """Return what has to be held by whoever starts a program that may be shared."""
        return self._locks.setdefault(key, asyncio.Lock())

    def find(self, key: str) -> SharedProgram | None:
        """Return the program that one more may sit down in, if there is one."""
        found = self._programs.get(key)
        return found if found is not None and found.is_open else None

    def add(self, key: str, shared: SharedProgram) -> None:
        """Let others sit down in a program."""
        self._programs = {k: each for k, each in self._programs.items() if each.is_open}
        self._programs[key] = shared

    def has(self, birth: ProcessIdentity) -> bool:
        """Tell whether a program is one of those here, and others may sit in it."""
        return any(each.is_open and each.program.birth == birth for each in self._programs.values())
