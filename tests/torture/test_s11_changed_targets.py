"""S11: what was allowed and has changed since is not what runs."""

import asyncio
import os
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Event, Holdfast, RunScope, Session
from holdfast.config import Config
from holdfast.config.settings import Chat
from holdfast.domain.approvals import ApprovalState, Decision
from holdfast.domain.events import ApprovalRequested, TurnEnded
from holdfast.domain.messages import Message, ToolResult
from holdfast.ports.tools import CallOutcome, PlannedCall, Toolbox, ToolWorkspace
from tests.houses import played
from tests.marks import proves
from tests.tooled import (
    a_config,
    answer,
    asks,
    call,
    open_equipped,
    open_wrapped,
    question,
    says,
    started,
)
from tests.torture.changes import Case, cases
from tests.torture.conftest import Tell

pytestmark = pytest.mark.slow

YES = Decision(state=ApprovalState.ALLOWED, by="ada")
AT_ONCE = 100


@dataclass(frozen=True)
class Tried:
    """A case in its folder."""

    case: Case
    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    def asked(self) -> dict[str, Any]:
        """Return the call as the model asks for it."""
        arguments = {
            name: value.format(here=self.id) if isinstance(value, str) else value
            for name, value in self.case.arguments.items()
        }
        return call(self.case.tool, self.id, **arguments)

    def state(self) -> dict[str, object]:
        """Return all that can be seen of the case from outside."""
        outside = self.folder.parent.parent / "outside" / self.id
        return {
            str(path): (path.lstat().st_mode, _shown(path))
            for root in (self.folder, outside)
            for path in root.rglob("*")
        }


def _shown(path: Path) -> object:
    if path.is_symlink():
        return path.readlink()
    return path.read_bytes() if path.is_file() else None


def prepared(tmp_path: Path, chosen: Sequence[Case]) -> list[Tried]:
    """Prepare every case in a folder of its own."""
    tried = [Tried(case, tmp_path / "desk" / f"c{number}") for number, case in enumerate(chosen)]
    for each in tried:
        each.folder.mkdir(parents=True)
        each.case.prepare(each.folder)
    return tried


def settings(home: Path, tried: Sequence[Tried], **changes: Any) -> Config:
    """Return a model that asks for all calls, and a list that allows the programs."""
    asked = [each.asked() for each in tried]
    steps = [asks(*asked[at : at + AT_ONCE]) for at in range(0, len(asked), AT_ONCE)]
    lines = [
        shlex.join((each["arguments"]["command"], *each["arguments"]["args"]))
        for each in asked
        if each["name"] == "run_command"
    ]
    chat = Chat(allowed_commands=tuple(lines))
    return a_config(home, *steps, says("done"), chat=chat, **changes)


async def allowed(
    house: Holdfast, session: Session, before: Callable[[str], None]
) -> tuple[Message, ...]:
    """Allow every call after something was done about it."""
    async with asyncio.timeout(120), aclosing(house.follow(session.id)) as news:
        async for item in news:
            if isinstance(item, Event) and isinstance(item.payload, TurnEnded):
                break
            if isinstance(item, Event) and isinstance(item.payload, ApprovalRequested):
                before(str(item.payload.call_id))
                asked = item.payload.approval_id
                await house.approvals.answer(house.owner, session.id, asked, YES)
    return await house.read(session.id)


def results(rows: Sequence[Message]) -> dict[str, str]:
    """Return how each call came out, by its id."""
    parts = [part for row in rows for part in row.parts]
    return {
        part.call_id: f"{part.status}/{part.error.code}" if part.error else str(part.status)
        for part in parts
        if isinstance(part, ToolResult)
    }


Opening = Callable[[Config], AbstractAsyncContextManager[Holdfast]]


def lived_through(
    tmp_path: Path,
    tried: Sequence[Tried],
    *,
    change: bool = True,
    opening: Opening = open_equipped,
) -> tuple[dict[str, str], list[str]]:
    """Have every call allowed, each after its change; return what was told, and who has run."""
    by_id = {each.id: each for each in tried}
    states: dict[str, dict[str, object]] = {}

    def before(call_id: str) -> None:
        if change:
            by_id[call_id].case.change(by_id[call_id].folder)
        states[call_id] = by_id[call_id].state()

    async def tried_all() -> dict[str, str]:
        async with opening(settings(tmp_path / "home", tried)) as house:
            session = await started(house, tmp_path / "desk")
            return results(await allowed(house, session, before))

    told = asyncio.run(tried_all())
    # Whoever was not asked has no state, and that is as bad.
    return told, [each.case.name for each in tried if states.get(each.id) != each.state()]


@proves("S11")
def test_a_target_that_changed_after_the_answer_is_left_alone(tmp_path: Path, tell: Tell) -> None:
    tried = prepared(tmp_path, list(cases()))

    told, ran = lived_through(tmp_path, tried)

    codes = Counter(told.values())
    tell(f"{len(tried)} changes after the answer, {len(ran)} runs: {dict(codes)}")
    assert (ran, codes["ok"]) == ([], 0)
    assert len(tried) >= 200
    # Mostly told as what it is; some targets can no longer be planned at all.
    assert codes["denied/target_changed"] > 100


@proves("S11")
def test_the_same_calls_run_when_nothing_has_changed(tmp_path: Path) -> None:
    tried = prepared(tmp_path, list(cases())[::7])

    told, ran = lived_through(tmp_path, tried, change=False)

    assert set(told.values()) == {"ok"}
    assert ran == [each.case.name for each in tried]


class Trusting:
    """A toolbox that does not look again: the control, and what a peer of ours might do."""

    def __init__(self, theirs: Toolbox) -> None:
        self._theirs = theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    async def run(self, place: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        again = await self._theirs.plan(place, planned.asked)
        return again if isinstance(again, CallOutcome) else await self._theirs.run(place, again)


@proves("S11")
def test_a_toolbox_that_does_not_look_again_would_be_found(tmp_path: Path) -> None:
    chosen = [case for case in cases() if case.name.startswith("content, one")]
    tried = prepared(tmp_path, chosen)

    told, ran = lived_through(
        tmp_path, tried, opening=lambda config: open_wrapped(config, Trusting)
    )

    assert set(told.values()) == {"ok"}
    assert ran == [each.case.name for each in tried]


def _swapped(desk: Path) -> None:
    """Put another folder of the same looks in the place of the working directory."""
    desk.rename(desk.with_name("moved"))
    shutil.copytree(desk.with_name("moved"), desk)


def _linked(desk: Path) -> None:
    desk.rename(desk.with_name("moved"))
    desk.symlink_to("moved")


def _linked_away(desk: Path) -> None:
    other = desk.with_name("elsewhere")
    shutil.copytree(desk, other)
    (other / "run.sh").write_text("#!/bin/sh\necho ran > ran\n# another\n")
    desk.rename(desk.with_name("moved"))
    desk.symlink_to(other)


def _vanished(desk: Path) -> None:
    shutil.rmtree(desk)


WORKING_FOLDERS: dict[str, Callable[[Path], None]] = {
    "swapped": _swapped,
    "a link to itself": _linked,
    "a link elsewhere": _linked_away,
    "gone": _vanished,
}


@proves("S11")
@pytest.mark.parametrize("change", WORKING_FOLDERS.values(), ids=list(WORKING_FOLDERS))
def test_a_command_does_not_run_in_another_folder_than_was_shown(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "run.sh").write_text("#!/bin/sh\necho ran > ran\n")
    (desk / "run.sh").chmod(0o755)
    config = a_config(
        tmp_path / "home",
        asks(call("run_command", "c1", command="./run.sh")),
        says("done"),
        chat=Chat(allowed_commands=("./run.sh",)),
    )

    async def tried() -> dict[str, str]:
        async with open_equipped(config) as house:
            session = await started(house, desk)
            return results(await allowed(house, session, lambda _: change(desk)))

    told = asyncio.run(tried())

    assert told["c1"] in {"denied/target_changed", "error/unavailable"}
    assert list(tmp_path.rglob("ran")) == []


@proves("S11")
def test_a_command_does_not_run_another_script_than_was_there(tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "t.sh").write_text("echo ran > one\n")
    config = a_config(
        tmp_path / "home",
        asks(call("run_command", "c1", command="sh", args=["t.sh"])),
        says("done"),
        chat=Chat(allowed_commands=("sh t.sh",)),
    )

    async def tried() -> dict[str, str]:
        async with open_equipped(config) as house:
            session = await started(house, desk)
            change = (desk / "t.sh").write_text
            return results(await allowed(house, session, lambda _: change("echo ran > two\n")))

    told = asyncio.run(tried())

    assert told["c1"] == "denied/target_changed"
    assert os.listdir(desk) == ["t.sh"]


@proves("S11")
def test_a_command_does_not_run_in_another_environment_than_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "run.sh").write_text("#!/bin/sh\necho $LANG > ran\n")
    (desk / "run.sh").chmod(0o755)
    monkeypatch.setenv("LANG", "C.UTF-8")
    config = a_config(
        tmp_path / "home",
        asks(call("run_command", "c1", command="./run.sh")),
        says("done"),
        chat=Chat(allowed_commands=("./run.sh",)),
    )

    async def tried() -> dict[str, str]:
        async with open_equipped(config) as house:
            session = await started(house, desk)
            change = monkeypatch.setenv
            return results(await allowed(house, session, lambda _: change("LANG", "xx_YY")))

    told = asyncio.run(tried())

    # As it was shown or not at all.
    assert told["c1"] == "denied/target_changed" or (desk / "ran").read_text() == "C.UTF-8\n"


def _git(desk: Path, *words: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(desk.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    run = subprocess.run(
        ["git", *words], cwd=desk, env=environment, capture_output=True, text=True, check=True
    )
    return run.stdout


def _repository(desk: Path) -> None:
    desk.mkdir()
    _git(desk, "config", "--global", "user.name", "Ada")
    _git(desk, "config", "--global", "user.email", "ada@example.com")
    _git(desk, "init", "--quiet", "--initial-branch=main")
    (desk / "a.txt").write_text("one\n")
    (desk / "b.txt").write_text("one\n")
    _git(desk, "add", "--all")
    _git(desk, "commit", "--quiet", "--message=first")
    (desk / "a.txt").write_text("two\n")


def _committed(desk: Path) -> None:
    (desk / "b.txt").write_text("elsewhere\n")
    _git(desk, "commit", "--quiet", "--all", "--message=somebody else")


def _staged(desk: Path) -> None:
    (desk / "b.txt").write_text("staged\n")
    _git(desk, "add", "b.txt")


def _amended(desk: Path) -> None:
    _git(desk, "commit", "--quiet", "--amend", "--message=another first")


def _filtered(desk: Path) -> None:
    (desk / ".gitattributes").write_text("*.txt filter=lfs\n")


def _other_repository(desk: Path) -> None:
    shutil.rmtree(desk / ".git")
    _git(desk, "init", "--quiet", "--initial-branch=main")
    _git(desk, "add", "b.txt")
    _git(desk, "commit", "--quiet", "--message=of another")


def _linked_file(desk: Path) -> None:
    (desk / "a.txt").unlink()
    (desk / "a.txt").symlink_to("b.txt")


def _holds(content: bytes) -> Callable[[Path], None]:
    def change(desk: Path) -> None:
        (desk / "a.txt").write_bytes(content)

    return change


def _done(*words: str) -> Callable[[Path], None]:
    def change(desk: Path) -> None:
        _git(desk, *words)

    return change


REPOSITORIES: dict[str, Callable[[Path], None]] = {
    "the file": _holds(b"three\n"),
    "the file's end of line": _holds(b"two\r\n"),
    "the file is as before": _holds(b"one\n"),
    "the file's mode": lambda desk: (desk / "a.txt").chmod(0o755),
    "the file is gone": lambda desk: (desk / "a.txt").unlink(),
    "the file is a link": _linked_file,
    "another commit": _committed,
    "the commit before": _amended,
    "another branch": _done("switch", "--quiet", "--create", "side"),
    "no branch": _done("switch", "--quiet", "--detach"),
    "the index": _staged,
    "a filter": _filtered,
    "the author": _done("config", "user.name", "Mallory"),
    "the repository": _other_repository,
}


@proves("S11")
def test_a_commit_is_exactly_the_one_that_was_shown(tmp_path: Path, tell: Tell) -> None:
    async def tried(desk: Path, change: Callable[[Path], None]) -> str:
        committing = call("git_commit", "c1", message="second", paths=["a.txt"])
        config = a_config(desk.parent / "home", asks(committing), says("done"))
        async with open_equipped(config) as house:
            session = await started(house, desk)
            return results(await allowed(house, session, lambda _: change(desk)))["c1"]

    told = {}
    for number, (what, change) in enumerate(REPOSITORIES.items()):
        desk = tmp_path / str(number) / "desk"
        desk.parent.mkdir()
        _repository(desk)
        told[what] = asyncio.run(tried(desk, change))
        assert "second" not in _git(desk, "log", "--all", "--format=%s"), what
    desk = tmp_path / "unchanged" / "desk"
    desk.parent.mkdir()
    _repository(desk)
    control = asyncio.run(tried(desk, lambda _: None))

    tell(f"{len(told)} changes of a repository: {dict(Counter(told.values()))}")
    assert "ok" not in told.values()
    assert control == "ok"
    assert _git(desk, "log", "--format=%s").split() == ["second", "first"]


@proves("S11")
def test_an_answer_is_for_its_own_call_also_when_two_ask_for_the_same(tmp_path: Path) -> None:
    (tmp_path / "desk").mkdir()
    same = {"path": "log.txt", "content": "line\n", "mode": "append"}
    config = a_config(
        tmp_path / "home",
        asks(call("write_file", "c1", **same), call("write_file", "c2", **same)),
        says("done"),
    )

    async def tried() -> tuple[list[str], dict[str, str]]:
        async with open_equipped(config) as house:
            session = await started(house, tmp_path / "desk")
            first = await question(house, session)
            await answer(house, first)
            second = await question(house, session, number=2)
            await answer(house, second, ApprovalState.DENIED)
            rows = await played(house, session.id)
            return [first.question.digest, second.question.digest], results(rows)

    digests, told = asyncio.run(tried())

    assert len(set(digests)) == 2
    assert told == {"c1": "ok", "c2": "denied/rejected"}
    assert (tmp_path / "desk" / "log.txt").read_text() == "line\n"


@proves("S11")
def test_what_was_allowed_under_one_list_of_commands_does_not_run_under_another(
    tmp_path: Path,
) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "run.sh").write_text("#!/bin/sh\necho ran > ran\n")
    (desk / "run.sh").chmod(0o755)
    config = a_config(
        tmp_path / "home",
        asks(call("run_command", "c1", command="./run.sh")),
        says("done"),
        chat=Chat(allowed_commands=("./run.sh",)),
    )

    async def tried() -> dict[str, str]:
        async with open_equipped(config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
        async with open_equipped(config, scope=RunScope.NONE) as house:
            await answer(house, asked)
        async with open_equipped(replace(config, chat=Chat())) as house:
            return results(await played(house, session.id))

    told = asyncio.run(tried())

    assert told["c1"] == "error/unavailable"
    assert not (desk / "ran").exists()
