"""`holdfast.sync`: the same verbs without an event loop, and a stub that says so."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Answer, RunScope, SessionId, SessionQuery, sync
from holdfast.ask.answers import TextDelta
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid
from holdfast.domain.events import Event
from holdfast.domain.sessions import StopReason
from tests.api.sync_stub import STUB, render
from tests.cli.remote_server import serve
from tests.tooled import a_config, says


def test_the_stub_is_what_the_protocol_says() -> None:
    assert STUB.read_text("utf-8") == render(), "run python -m tests.api.sync_stub"


def journey(hf: sync.Holdfast) -> list[Any]:
    """Return what a few verbs of each kind return."""
    answer = hf.ask("Repeat after me: hold fast", key="k")
    *pieces, last = hf.stream("Repeat after me: hold fast", key="k")
    session = hf.sessions.get(hf.owner, answer.session_id)
    events = list(hf.follow(session.id, until_settled=True))
    for first in hf.follow(session.id):
        events.append(first)
        break
    listed = hf.sessions.list(SessionQuery(owner=hf.owner)).items
    with pytest.raises(HoldfastError) as caught:
        hf.ask("x", session="0192f0c1-0000-7000-8000-000000000001")
    said = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    assert isinstance(last, Answer)
    assert last == answer
    return [
        (answer.text == said, answer.stop_reason, answer.turn),
        [type(each.payload).__name__ for each in events if isinstance(each, Event)],
        [each.title for each in listed],
        (caught.value.code, caught.value.message),
    ]


@pytest.mark.slow
def test_a_store_and_a_server_answer_without_a_loop_of_the_program(home: Path) -> None:
    with sync.open_holdfast(config=a_config(home)) as hf:
        here = journey(hf)
    far = home.parent / "far"
    far.mkdir(mode=0o700)
    with serve(far) as server, sync.connect(server.url, server.secret) as hf:
        there = journey(hf)

    assert here == there
    assert here[0] == (True, StopReason.STOP, 1)


@pytest.mark.anyio
async def test_it_works_below_a_running_loop(home: Path) -> None:
    with sync.open_holdfast(config=a_config(home, says("ok"))) as hf:
        assert hf.ask("go").text == "ok"


def test_what_cannot_work_is_refused(home: Path) -> None:
    with sync.open_holdfast(config=a_config(home), scope=RunScope.NONE) as hf:
        odd: Any = hf
        items = hf.follow(hf.open().id)

        async def inside() -> Code:
            with pytest.raises(Invalid) as refused:
                hf.defaults()
            return refused.value.code

        assert odd._thread.wait(inside()) is Code.WRONG_THREAD
        for name in ("store", "_loop"):
            with pytest.raises(AttributeError):
                getattr(hf, name)
        with pytest.raises(AttributeError):
            odd.exports.stream("x")
    for verb in (hf.defaults, lambda: next(iter(items))):
        with pytest.raises(Conflict) as caught:
            verb()
        assert caught.value.code is Code.STORE_CLOSED


def test_a_store_that_cannot_be_opened_raises_where_it_is_opened(home: Path) -> None:
    home.write_text("no folder")

    with pytest.raises(HoldfastError), sync.open_holdfast(home):
        raise AssertionError("it was opened")


FORKING = """
import os, sys
from holdfast import Conflict, sync

with sync.open_holdfast(sys.argv[1]) as hf:
    hf.defaults()
    child = os.fork()
    if child == 0:
        try:
            hf.defaults()
        except Conflict as error:
            os._exit(7 if error.code == "store_closed" else 1)
        os._exit(2)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), hf.defaults().model)
"""


@pytest.mark.slow
def test_a_forked_child_is_told_to_open_its_own(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, str(home)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == "7 offline:holdfast\n"


ASKING = """
import sys
from holdfast import Config, sync

with sync.open_holdfast(sys.argv[1]) as hf:
    try:
        for item in hf.follow(hf.open(id=sys.argv[3]).id):
            print("ready", flush=True)
            break
        hf.ask("go", session=sys.argv[3])
    except KeyboardInterrupt:
        print(hf.sessions.get(hf.owner, sys.argv[3]).last_stop)
"""


@pytest.mark.slow
def test_ctrl_c_interrupts_the_turn(home: Path) -> None:
    session_id = "0192f0c1-0000-7000-8000-000000000001"
    model = a_config(home, says("late", delay_ms=600_000)).default_model
    with subprocess.Popen(
        [sys.executable, "-c", ASKING, str(home), "", session_id],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOLDFAST_MODEL": model},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with sync.open_holdfast(home, scope=RunScope.NONE) as hf:
            for item in hf.follow(SessionId(session_id)):
                if isinstance(item, Event) and item.turn == 1:
                    break
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)

    assert told == "aborted\n"
