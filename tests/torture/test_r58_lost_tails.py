"""R58: the acknowledged end of the log is removed, cut off or flipped; the loss is never silent."""

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest

from holdfast import HoldfastError, RunScope, SessionId, open_holdfast
from holdfast.store.sqlite import wal_anchor as sqlite_wal_anchor
from tests.cli.processes import beside
from tests.marks import proves
from tests.torture.clients.house import new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.served import Server

pytestmark = pytest.mark.slow

LOG, ANCHOR = "history.db-wal", "history.db-anchor"
FRAME = 24 + 4096
LAST = 10
SESSION = SessionId(new_id(random.Random(57)))
Damage = Callable[[Path, random.Random], None]


class Talk:
    """A person who sends messages to a server and counts those that were accepted."""

    def __init__(self, server: Server) -> None:
        headers = {"authorization": f"Bearer {server.token}"}
        self._client = httpx.Client(
            base_url=server.url, headers=headers, timeout=PATIENCE, trust_env=False
        )
        self.accepted: set[str] = set()
        answer = self._client.post("/v1/agents/holdfast/sessions", json={"id": SESSION})
        assert answer.status_code == 201, answer.text

    def send(self, luck: random.Random, role: str = "user") -> httpx.Response:
        """Send one message, and remember it if it was accepted."""
        key = new_id(luck)
        body = {"id": key, "role": role, "content": {"text": "short"}}
        body |= {"on_busy": "queue"} if role == "user" else {}
        answer = self._client.post(f"/v1/sessions/{SESSION}/messages", json=body)
        if answer.status_code == 201:
            self.accepted.add(key)
        return answer

    def wait(self) -> None:
        """Wait until no turn runs, and none begins for a moment."""
        quiet = 0
        while quiet < 5:
            time.sleep(0.05)
            session = self._client.get(f"/v1/sessions/{SESSION}").json()
            quiet = 0 if session["status"] in {"pending", "running"} else quiet + 1

    def health(self) -> int:
        """Return the status of the health check."""
        return self._client.get("/healthz").status_code

    def close(self) -> None:
        """Hang up."""
        self._client.close()


@proves("R58")
def test_a_log_that_goes_under_a_live_server_ends_its_yes_and_is_named_at_the_next_start(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    lives = sized(quick=1, test=3, torture=20, release=200)
    accepted = late = 0

    for number in range(lives):
        home = tmp_path / str(number) / "home"
        home.parent.mkdir()
        before, after = removed_under_a_server(home, crew, luck)
        accepted += len(before)
        late += len(after - before)
        assert opened(home) == "corrupt_store"
        doctor = beside(home, "doctor")
        assert doctor.returncode == 1
        assert "history.db-wal" in doctor.stdout
        assert "history.db-wal" in beside(home, "sessions", "verify").stderr

    tell(f"{lives} logs removed, {accepted} accepted before, {late} after, each loss named")
    assert late == 0


@proves("R58")
def test_damage_to_the_acknowledged_end_of_the_log_is_named(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(test=21, torture=130, release=1_800)
    home, accepted = killed(tmp_path / "home", crew, luck)
    assert accepted <= set(opened(Path(shutil.copytree(home, tmp_path / "whole"))))

    found = judged(home, tmp_path, luck, count, accepted)

    tell(f"{count} ends of a log damaged, {dict(found)}")
    assert found["silent"] == 0
    assert found["named"] == count


@proves("R58")
def test_without_the_anchor_the_loss_is_silent(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    home, accepted = killed(tmp_path / "home", crew, luck)

    # A flip in an earlier commit is found by the frames that follow it.
    for damage in (partial(_flip, among=1), _cut, _remove):
        found = judged(home, tmp_path, luck, 8, accepted, kinds=(damage,), without_anchor=True)

        assert found["silent"] > 0, damage


def removed_under_a_server(
    home: Path, crew: Crew, luck: random.Random
) -> tuple[set[str], set[str]]:
    """Remove the log of a working server, then kill it; return what it accepted before and in all.

    Its turns go on meanwhile, so that the log goes at any point of a commit.
    """
    server = Server(crew, home)
    server.start()
    talk = Talk(server)
    try:
        for _ in range(luck.randrange(5, 20)):
            talk.send(luck)
        (home / LOG).unlink()
        before = set(talk.accepted)
        answers = [talk.send(luck) for _ in range(5)]
        assert {each.status_code for each in answers} == {503}
        assert f"/proc/{server.pid}/fd/" in answers[-1].json()["message"]
        assert talk.health() == 503
    finally:
        talk.close()
    server.kill()
    return before, talk.accepted


def killed(home: Path, crew: Crew, luck: random.Random) -> tuple[Path, set[str]]:
    """Return the home of a server that was killed, and what it had accepted."""
    server = Server(crew, home)
    server.start()
    talk = Talk(server)
    for _ in range(30):
        assert talk.send(luck).status_code == 201
    talk.wait()
    # It starts no turn, so that the log ends with a commit that was acknowledged.
    assert talk.send(luck, role="assistant").status_code == 201
    talk.close()
    server.kill()
    (home / "history.db-shm").unlink()
    return home, talk.accepted


def judged(
    home: Path,
    folder: Path,
    luck: random.Random,
    count: int,
    accepted: set[str],
    *,
    kinds: Sequence[Damage] = (),
    without_anchor: bool = False,
) -> Counter[str]:
    """Damage copies of a home, each in one way; count whether the loss is named or silent."""
    found: Counter[str] = Counter()
    for number in range(count):
        copy = Path(shutil.copytree(home, folder / f"damaged{number}"))
        chosen = kinds or DAMAGE
        chosen[number % len(chosen)](copy, luck)
        if without_anchor:
            (copy / ANCHOR).unlink()
        there = opened(copy)
        if isinstance(there, str):
            found["named"] += 1
        else:
            found["whole" if accepted <= there else "silent"] += 1
        shutil.rmtree(copy)
    return found


def opened(home: Path) -> set[str] | str:
    """Return the messages of a home, or how it was refused."""

    async def read() -> set[str]:
        async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
            try:
                return {message.id for message in await house.read(SESSION)}
            except HoldfastError:
                return set()

    try:
        return asyncio.run(read())
    except HoldfastError as error:
        return str(error.code)


def _anchored(home: Path) -> int:
    record = sqlite_wal_anchor.load(home / "history.db")
    assert record is not None
    return record.frame


def _flip(home: Path, luck: random.Random, *, among: int = LAST) -> None:
    """Flip one bit in one of the last frames."""
    last = _anchored(home)
    frame = luck.randrange(max(last - among, 0), last)
    place = (32 + frame * FRAME) * 8 + luck.randrange(FRAME * 8)
    content = bytearray((home / LOG).read_bytes())
    content[place // 8] ^= 1 << place % 8
    (home / LOG).write_bytes(content)


def _cut(home: Path, luck: random.Random) -> None:
    """Cut the log off somewhere before its acknowledged end."""
    end = 32 + _anchored(home) * FRAME
    os.truncate(home / LOG, luck.randrange(end))


def _remove(home: Path, _: random.Random) -> None:
    """Remove the log."""
    (home / LOG).unlink()


DAMAGE: tuple[Damage, ...] = (_flip, _cut, _flip, _flip, _remove)
