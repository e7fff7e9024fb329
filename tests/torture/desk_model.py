"""A desk and its archives as plain values: what each step makes of them, and what is really there.

Contents only, archives in the order of their times: where a file lies is all that matters.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.ports.store import Tx
from tests.torture.clients.house import settings

AGENT = "holdfast"
VERBS = ("write", "append", "archive", "restore", "delete", "open", "close")
WEIGHTS = (6, 6, 3, 3, 1, 2, 2)
Files = dict[str, str]


@dataclass(frozen=True)
class Step:
    """One thing that is done: to which archive, counted from the oldest, or with what content."""

    verb: str
    content: str = ""
    archive: int = 0


@dataclass(frozen=True)
class Desks:
    """What lies on the desk, what is archived, and whether a session sits there."""

    desk: tuple[tuple[str, str], ...] = ()
    archives: tuple[tuple[tuple[str, str], ...], ...] = ()
    is_taken: bool = False

    def after(self, step: Step) -> "Desks":
        """Return what a step makes of it."""
        match step.verb:
            case "write":
                return self._with("output.state.json", step.content)
            case "append":
                line = f"{dict(self.desk).get('output', '')}{step.content}\n"
                return self._with("output", line)
            case "delete":
                kept = [each for at, each in enumerate(self.archives) if at != step.archive]
                return replace(self, archives=tuple(kept))
            case "restore":
                back = self.archives[step.archive]
                return replace(self._cleared(), desk=back)
            case "open":
                return replace(self._cleared(), is_taken=True)
            case "close":
                return replace(self._cleared(), is_taken=False) if self.is_taken else self
            case _:
                return self._cleared()

    def _with(self, name: str, content: str) -> "Desks":
        return replace(self, desk=tuple(sorted({**dict(self.desk), name: content}.items())))

    def _cleared(self) -> "Desks":
        if not self.desk:
            return self
        return replace(self, desk=(), archives=(*self.archives, self.desk))


def next_step(luck: random.Random, now: Desks) -> Step:
    """Return something that can be done now; every content is written once."""
    verb = luck.choices(VERBS, WEIGHTS)[0]
    if verb in {"restore", "delete"} and not now.archives:
        verb = "write"
    size = luck.choice((3, 300, 70_000))
    content = f"{luck.getrandbits(64):016x}" + "x" * luck.randrange(size)
    archive = luck.randrange(len(now.archives)) if now.archives else 0
    return Step(verb, content, archive)


async def done(house: Holdfast, step: Step) -> None:
    """Do a step."""
    owner, zones = house.owner, house.zones
    match step.verb:
        case "write":
            await zones.write_state(owner, AGENT, step.content)
        case "append":
            await zones.append_output(owner, AGENT, step.content)
        case "archive":
            await zones.archive(owner, AGENT)
        case "open":
            await house.open(AGENT)
        case "close":
            session = (await zones.show(owner, AGENT)).session_id
            if session is not None:
                await house.sessions.close(owner, session)
        case _:
            ms = (await _times(house))[step.archive]
            change = zones.restore_archive if step.verb == "restore" else zones.delete_archive
            await change(owner, AGENT, ms)


async def found(home: Path) -> tuple[Desks, list[str]]:
    """Return what is really there, and what the store finds wrong with itself."""
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        agent = await house.agents.get(house.owner, AGENT)
        desk = await house.zones.show(house.owner, AGENT)
        prefix = f"agent:{agent.id}:"
        times = await _times(house)
        archives = [await _files(house, f"{prefix}archive:{ms}") for ms in times]
        now = Desks(
            desk=await _files(house, f"{prefix}current"),
            archives=tuple(archives),
            is_taken=desk.session_id is not None,
        )
        return now, await house.store.check()


async def _times(house: Holdfast) -> list[int]:
    agent = await house.agents.get(house.owner, AGENT)
    prefix = f"agent:{agent.id}:archive:"
    names = await house.store.read(lambda tx: tx.zones.names(house.owner, prefix))
    return sorted(int(name.removeprefix(prefix)) for name in names)


async def _files(house: Holdfast, zone: str) -> tuple[tuple[str, str], ...]:
    async def read(tx: Tx) -> tuple[tuple[str, str], ...]:
        files = await tx.zones.files(house.owner, zone)
        return tuple(
            [(file.name, (await tx.zones.read(file, 0, file.size)).decode()) for file in files]
        )

    return await house.store.read(read)
