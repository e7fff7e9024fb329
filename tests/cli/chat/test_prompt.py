"""The line at which a question is answered, with keys that are pressed by the test."""

import asyncio

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast.cli.chat.prompt import AnswerPrompt, EndPressedError, InterruptPressedError
from tests.marks import each_case
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

ESCAPE, CTRL_C, CTRL_D = "\x1b", "\x03", "\x04"


async def answered(pressed: str) -> str:
    """Return what a person has answered who presses these keys."""
    with create_pipe_input() as keys, create_app_session(keys, DummyOutput()):
        keys.send_text(pressed)
        async with asyncio.timeout(PATIENCE):
            return await AnswerPrompt().answer("Allow? ")


@each_case(
    ("pressed", "error"),
    [(ESCAPE, InterruptPressedError), (CTRL_C, InterruptPressedError), (CTRL_D, EndPressedError)],
)
async def test_a_key_leaves_the_question(pressed: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await answered(pressed)


async def test_an_arrow_key_is_no_escape() -> None:
    assert await answered("ys\x1b[De\r") == "yes"
