"""Where a guest plays: a throwaway home, a repository, a house of ours, and its record."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from holdfast.acp.client.presets import preset_fields
from holdfast.api import Holdfast
from holdfast.app import open_holdfast
from holdfast.config import load
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.approvals import ApprovalState, Decision
from holdfast.domain.events import ApprovalRequested, Event, StepDelta, TurnEnded
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message
from holdfast.domain.sessions import SessionRequest
from tests.interop.installing import command_of, node_for
from tests.interop.model_server import ModelServer
from tests.interop.programs import Guest

TEE: Final = Path(__file__).with_name("tee.py")
PATIENCE: Final = 60.0


@dataclass(frozen=True)
class Stage:
    """The folders of one guest, and how its program is started there."""

    guest: Guest
    folder: Path
    runtime: AcpRuntime
    model: ModelServer

    @property
    def repository(self) -> Path:
        """Return where it works."""
        return self.folder / "repository"

    @property
    def home(self) -> Path:
        """Return the home of our house."""
        return self.folder / "holdfast"

    @property
    def record(self) -> Path:
        """Return what both sides have said, in their order."""
        return self.folder / "record" / "wire.txt"

    @property
    def probe(self) -> Path:
        """Return the folder that a tool is asked to remove."""
        return self.repository / "probe"

    def has_probe(self) -> bool:
        """Tell whether the folder is still there."""
        return self.probe.is_dir()

    def lay_probe(self) -> None:
        """Put the folder there."""
        self.probe.mkdir(exist_ok=True)


def staged(
    guest: Guest, folder: Path, model: ModelServer, more: Mapping[str, str], *, is_latest: bool
) -> Stage:
    """Lay everything out for a guest; raises `Missing` where its program cannot be had."""
    command = command_of(guest.package, is_latest=is_latest)
    person = folder / "home"
    for name, text in guest.files.items():
        file = person / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("LLM", model.url))
    person.mkdir(parents=True, exist_ok=True)
    environment = {name: text.replace("LLM", model.url) for name, text in guest.environment.items()}
    environment |= {**more, "HOME": str(person), "PATH": _path(guest, is_latest=is_latest)}
    record = folder / "record" / "wire.txt"
    record.parent.mkdir()
    runtime = _runtime(guest, command, environment, record)
    stage = Stage(guest, folder, runtime, model)
    stage.repository.mkdir()
    subprocess.run(["git", "init", "--quiet", str(stage.repository)], check=True, timeout=30)
    return stage


def _path(guest: Guest, *, is_latest: bool) -> str:
    usual = os.environ.get("PATH", os.defpath)
    if guest.package.source != "npm":
        return usual
    return f"{node_for(guest.package, is_latest=is_latest)}{os.pathsep}{usual}"


def _runtime(guest: Guest, command: Path, environment: dict[str, str], record: Path) -> AcpRuntime:
    """Return the preset's program, with somebody between it and us who writes everything down."""
    made: AcpRuntime = preset_fields(guest.preset, is_root=os.geteuid() == 0)["runtime"]
    options: dict[str, Any] = dict(made.options)
    options["environment"] = options.get("environment", {}) | environment
    # Its home is the program's own, as far as the preset says; the record is ours.
    options["writable"] = [str(record.parent)]
    if guest.mode is not None:
        options["mode"] = guest.mode or None
    return replace(
        made,
        command=sys.executable,
        args=(str(TEE), str(record), "--", str(command), *made.args),
        env_names=(),
        options={name: value for name, value in options.items() if value is not None},
    )


@dataclass
class Talk:
    """One conversation in an open house: what was said, and what came of it."""

    house: Holdfast
    session: SessionId
    news: list[Event] = field(default_factory=list)

    async def say(
        self,
        text: str,
        *,
        allow: bool | None = None,
        stop_at: str = "",
        stop_after: float = PATIENCE,
    ) -> TurnEnded:
        """Say something and return how its turn ended.

        What is asked meanwhile is answered with `allow`. At the first text that holds `stop_at`,
        and after so many seconds, the turn is interrupted.
        """
        loop = asyncio.get_running_loop()
        stopping = loop.call_later(stop_after, lambda: loop.create_task(self._stop()))
        try:
            return await self._said(text, allow=allow, stop_at=stop_at)
        finally:
            stopping.cancel()

    async def _stop(self) -> None:
        await self.house.sessions.interrupt(self.house.owner, self.session)

    async def _said(self, text: str, *, allow: bool | None, stop_at: str) -> TurnEnded:
        async with asyncio.timeout(PATIENCE + 15):
            seen = (await self.house.sessions.get(self.house.owner, self.session)).last_event
            sent = await self.house.send(self.session, text)
            self.news = []
            async for event in self.house.follow(self.session, after=seen):
                if not isinstance(event, Event):
                    continue
                self.news.append(event)
                payload = event.payload
                if isinstance(payload, ApprovalRequested) and allow is not None:
                    await self._answer(payload, allow=allow)
                if stop_at and isinstance(payload, StepDelta) and stop_at in payload.text:
                    await self._stop()
                    stop_at = ""
                if isinstance(payload, TurnEnded) and event.turn == sent.turn:
                    return payload
        raise AssertionError("the news ended before the turn did")

    async def _answer(self, asked: ApprovalRequested, *, allow: bool) -> None:
        state = ApprovalState.ALLOWED if allow else ApprovalState.DENIED
        await self.house.approvals.answer(
            self.house.owner,
            self.session,
            asked.approval_id,
            Decision(state=state, by="interop"),
        )

    async def rows(self) -> tuple[Message, ...]:
        """Return the whole transcript."""
        return await self.house.read(self.session)

    def heard(self, kind: type[Any]) -> list[Any]:
        """Return the news of a kind, of the last turn."""
        return [each.payload for each in self.news if isinstance(each.payload, kind)]


@asynccontextmanager
async def a_house(stage: Stage) -> AsyncIterator[Holdfast]:
    """Open the guest's house, as a server would."""
    config = replace(load({"home": stage.home}), encryption="off")
    async with open_holdfast(config=config) as house:
        yield house


async def begun(house: Holdfast, stage: Stage) -> Talk:
    """Make the guest an agent and open a session in its repository."""
    fields = {"name": "Guest", "slug": "guest", "runtime": stage.runtime, "grant": None}
    await house.agents.create(house.owner, fields)
    repo = await house.repos.add(house.owner, str(stage.repository), at_terminal=True)
    session = await house.open("guest", SessionRequest(repo_id=repo.id))
    return Talk(house, session.id)


def marked(session: SessionId) -> list[int]:
    """Return the processes that were started for a session, found by their mark."""
    mark = f"HOLDFAST_SESSION_ID={session}".encode()
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        # A process may end while it is looked at, and others are not ours to read.
        with suppress(OSError):
            if mark in each.read_bytes().split(b"\0"):
                found.append(int(each.parent.name))
    return found


def cleared(folder: Path) -> Path:
    """Return an empty folder of that name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
