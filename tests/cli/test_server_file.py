"""The card of a server: it names one that lives, and nobody takes away another's."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from holdfast.cli.server_file import RECHECK_SECONDS, ServerFile
from holdfast.services.background_tasks import Background
from tests.engine.virtual_time import VIRTUAL_TIME
from tests.stand_ins import PATIENCE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a home."""
    return tmp_path


def shown(folder: Path) -> Any:
    """Return what the card says, or nothing."""
    file = folder / "server.json"
    return json.loads(file.read_text()) if file.exists() else None


def test_a_card_says_where_a_server_is_and_goes_with_it(folder: Path) -> None:
    card = ServerFile(folder, "http://127.0.0.1:1")

    assert card.claim() is None
    assert shown(folder) == card.form
    assert card.form | {"started_at": ""} == {
        "url": "http://127.0.0.1:1",
        "pid": os.getpid(),
        "started_at": "",
        "version": __version__,
    }
    assert (folder / "server.json").stat().st_mode & 0o777 == 0o600
    card.withdraw()
    assert list(folder.iterdir()) == []


def test_the_card_of_the_first_stays_and_the_second_follows_it(folder: Path) -> None:
    first, second = (
        ServerFile(folder, "http://127.0.0.1:1"),
        ServerFile(folder, "http://127.0.0.1:2"),
    )
    first.claim()

    assert second.claim() == first.form
    assert shown(folder) == first.form
    second.withdraw()
    assert shown(folder) == first.form
    first.withdraw()
    assert second.claim() is None
    assert shown(folder) == second.form
    assert second.claim() is None
    second.withdraw()


@pytest.mark.parametrize(
    "left", ["", "nonsense", "[]", "{}", '{"url": "u", "pid": 999999999}', '{"pid": "x"}']
)
def test_a_card_that_names_nobody_alive_is_replaced(folder: Path, left: str) -> None:
    (folder / "server.json").write_text(left)
    card = ServerFile(folder, "http://127.0.0.1:1")

    assert card.claim() is None
    assert shown(folder) == card.form
    card.withdraw()


def test_a_card_that_a_crash_left_is_replaced_whoever_has_the_number_now(folder: Path) -> None:
    dead = {"url": "u", "pid": os.getppid(), "started_at": "", "version": "0.1.0"}
    (folder / "server.json").write_text(json.dumps(dead))
    card = ServerFile(folder, "http://127.0.0.1:1")

    assert card.claim() is None
    card.withdraw()


def test_a_card_of_a_server_that_knew_no_lock_is_judged_by_its_process(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        old = {"url": "u", "pid": process.pid, "started_at": "2026-01-01T00:00:00.000000Z"}
        (folder / "server.json").write_text(json.dumps(old))
        card = ServerFile(folder, "http://127.0.0.1:1")

        assert card.claim() == old
        assert shown(folder) == old
        process.communicate(b"\n", timeout=PATIENCE)

    assert card.claim() is None
    card.withdraw()


@pytest.mark.anyio
class TestKeeping:
    """In virtual time."""

    @pytest.fixture
    def anyio_backend(self) -> Any:
        """Let waiting take no time."""
        return VIRTUAL_TIME

    async def test_who_keeps_looking_gets_the_place_that_becomes_free(self, folder: Path) -> None:
        first, second = (
            ServerFile(folder, "http://127.0.0.1:1"),
            ServerFile(folder, "http://127.0.0.1:2"),
        )
        first.claim()

        async with Background() as keeping:
            keeping.start(second.keep())
            await asyncio.sleep(RECHECK_SECONDS * 2)
            before = shown(folder)
            first.withdraw()
            await asyncio.sleep(RECHECK_SECONDS * 2)

        assert (before, shown(folder)) == (first.form, second.form)
        second.withdraw()
