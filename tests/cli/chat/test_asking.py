"""Questions while they are asked: answered elsewhere at the last moment, stopped, left."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from holdfast import SessionContext, SessionRequest
from holdfast.api import Holdfast
from holdfast.cli.approval_policy import AttendancePolicy
from holdfast.cli.chat.approvals import ApprovalPrompt, InteractiveApprovals
from holdfast.cli.chat.conversation import ChatConversation, SignalHandler
from holdfast.cli.chat.prompt import EndPressedError, InterruptPressedError
from holdfast.cli.chat.screen import TextScreen
from holdfast.cli.options import GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.approvals import Approval, ApprovalState, Decision
from holdfast.domain.events import ApprovalRequested, Event
from holdfast.domain.sessions import Status
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

Typing = Callable[[], Awaitable[str]]


class StandInPrompt:
    """A person whose answers are the test's."""

    def __init__(self, *typed: Typing) -> None:
        self._typed = list(typed)
        self.asked: list[str] = []

    @contextmanager
    def fresh(self) -> Iterator[None]:
        yield

    async def answer(self, asked: str) -> str:
        self.asked.append(asked)
        return await self._typed.pop(0)()


def types(text: str) -> Typing:
    """Return somebody who types at once."""

    async def typed() -> str:
        return text

    return typed


def presses(error: type[Exception]) -> Typing:
    """Return somebody who presses Ctrl-C or Ctrl-D."""

    async def pressed() -> str:
        raise error

    return pressed


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Make a folder to work in."""
    folder = tmp_path / "desk"
    folder.mkdir()
    return folder


@asynccontextmanager
async def asking(
    holdfast: Holdfast, desk: Path, prompt: StandInPrompt
) -> AsyncIterator[ChatConversation]:
    """Open a session at a folder, with a person who is asked."""
    wishes = SessionRequest(context=SessionContext(working_dir=str(desk)))
    session = await holdfast.open("holdfast", wishes)
    printer = Printer(GlobalOptions())
    screen = TextScreen(printer, holdfast, AttendancePolicy(asks=True))
    asker = InteractiveApprovals(holdfast, screen, ApprovalPrompt(printer, prompt))  # type: ignore[arg-type]
    with SignalHandler() as signals:
        async with asyncio.timeout(PATIENCE):
            yield ChatConversation(holdfast, session, screen, signals, asker)


async def waiting(holdfast: Holdfast) -> tuple[Approval, ...]:
    """Return the questions that wait."""
    return (await holdfast.approvals.list(holdfast.owner, state=ApprovalState.WAITING)).items


async def test_a_person_is_asked_until_the_answer_means_something(
    holdfast: Holdfast, desk: Path
) -> None:
    prompt = StandInPrompt(types("hm"), types(""), types("y"))
    async with asking(holdfast, desk, prompt) as conversation:
        await conversation.say("write a.txt: hi")

    assert prompt.asked == ["Allow? [y/a/n] "] * 3
    assert (desk / "a.txt").read_text() == "hi\n"


@pytest.mark.parametrize("theirs", [ApprovalState.ALLOWED, ApprovalState.DENIED])
async def test_the_first_answer_counts_and_a_late_one_is_told_so(
    holdfast: Holdfast,
    desk: Path,
    theirs: ApprovalState,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def typed() -> str:
        # As it happens when two people press Enter at once: the news is still on its way.
        (asked,) = await waiting(holdfast)
        given = Decision(state=theirs, by="bob")
        await holdfast.approvals.answer(holdfast.owner, asked.session_id, asked.id, given)
        return "y"

    async with asking(holdfast, desk, StandInPrompt(typed)) as conversation:
        await conversation.say("write a.txt: hi")
        (asked,) = (await holdfast.approvals.list(holdfast.owner, conversation.session_id)).items

    assert (asked.state, asked.answered_by) == (theirs, "bob")
    assert (desk / "a.txt").exists() is (theirs is ApprovalState.ALLOWED)
    assert f"Already answered elsewhere: {theirs}, by bob.\n" in capsys.readouterr().err


async def test_an_answer_from_elsewhere_ends_the_typing(
    holdfast: Holdfast, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typing = asyncio.Event()

    async def typed() -> str:
        typing.set()
        return await asyncio.Future()

    async def elsewhere() -> None:
        await typing.wait()
        (asked,) = await waiting(holdfast)
        yes = Decision(state=ApprovalState.ALLOWED, by="bob")
        await holdfast.approvals.answer(holdfast.owner, asked.session_id, asked.id, yes)

    async with (
        asking(holdfast, desk, StandInPrompt(typed)) as conversation,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(elsewhere())
        await conversation.say("write a.txt: hi")

    assert "Already answered elsewhere: allowed, by bob.\n" in capsys.readouterr().err
    assert (desk / "a.txt").exists()


@pytest.mark.parametrize("verb", ["interrupt", "close"])
async def test_a_question_goes_with_its_turn(
    holdfast: Holdfast, desk: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typing = asyncio.Event()

    async def typed() -> str:
        typing.set()
        return await asyncio.Future()

    async with (
        asking(holdfast, desk, StandInPrompt(typed)) as conversation,
        asyncio.TaskGroup() as tasks,
    ):

        async def elsewhere() -> None:
            await typing.wait()
            act = getattr(holdfast.sessions, verb)
            await act(holdfast.owner, conversation.session_id)

        tasks.create_task(elsewhere())
        await conversation.say("write a.txt: hi")

    assert "write_file a.txt: skipped (aborted): " in capsys.readouterr().err
    assert await waiting(holdfast) == ()
    assert not (desk / "a.txt").exists()


async def test_ctrl_c_at_a_question_interrupts(holdfast: Holdfast, desk: Path) -> None:
    async with asking(
        holdfast, desk, StandInPrompt(presses(InterruptPressedError))
    ) as conversation:
        await conversation.say("write a.txt: hi")
        session = await conversation.session()

    assert (session.status, session.last_stop) == (Status.IDLE, "aborted")
    assert conversation.has_finished() is False


async def test_ctrl_d_at_a_question_leaves_it_and_whoever_comes_next_is_asked(
    holdfast: Holdfast, desk: Path
) -> None:
    prompt = StandInPrompt(presses(EndPressedError), types("n"))
    async with asking(holdfast, desk, prompt) as conversation:
        await conversation.say("write a.txt: hi")
        left, open_questions = conversation.has_finished(), await waiting(holdfast)
        conversation.is_left = False
        await conversation.follow_turn(1)

    assert left is True
    assert len(open_questions) == 1
    assert prompt.asked == ["Allow? [y/a/n] "] * 2
    assert await waiting(holdfast) == ()


async def test_a_question_that_was_asked_before_we_came_is_asked_too(
    holdfast: Holdfast, desk: Path
) -> None:
    async with asking(holdfast, desk, StandInPrompt(types("y"))) as conversation:
        await holdfast.send(conversation.session_id, "write a.txt: hi")
        async for item in holdfast.follow(conversation.session_id):
            if isinstance(item, Event) and isinstance(item.payload, ApprovalRequested):
                break
        # As for a chat that resumes: the question is behind its cursor.
        conversation.cursor = (await conversation.session()).last_event
        await conversation.follow_turn(1)

    assert (desk / "a.txt").read_text() == "hi\n"
