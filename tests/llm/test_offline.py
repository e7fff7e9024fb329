"""The offline model: its rules as a table, and its honesty about them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import OFFLINE, model_of
from holdfast.llm.offline import HELP, NOTE, answer
from holdfast.llm.router import ModelRouter
from holdfast.ports.llm import Failed, FailureKind, LlmTextDelta, StepStop, Stopped
from tests.llm.builders import a_request, answered, heard, said
from tests.marks import each_case

pytestmark = pytest.mark.anyio


def later(text: str) -> str:
    """Return the answer to a text that is not the first of its conversation."""
    return answer(a_request(said("hi"), answered("Hello!"), said(text), model=OFFLINE))


@each_case(
    ("text", "reply"),
    [
        ("help", HELP),
        ("What can you do?", HELP),
        ("/help", HELP),
        ("Hello!", "Hello! I am Holdfast's offline model."),
        ("good morning, you", "Hello! I am Holdfast's offline model."),
        ("history is fun", "I have no rule for that. You wrote: history is fun"),
        ("What is 2+2?", "2+2 = 4"),
        ("what is (3.5*4)/2", "(3.5*4)/2 = 7"),
        ("calculate 2 + 3 * -4", "2 + 3 * -4 = -10"),
        ("9/4", "9/4 = 2.25"),
        ("what is 0.1+0.2?", "0.1+0.2 = 0.3"),
        ("2**3", "I have no rule for that. You wrote: 2**3"),
        ("(1+2", "I have no rule for that. You wrote: (1+2"),
        ("2024-11-15", "I have no rule for that. You wrote: 2024-11-15"),
        ("10/3", "10/3 ≈ 3.33333333333"),
        ("1+1 =", "1+1 = 2"),
        ("what is 1/0", "I cannot work out 1/0: nothing can be divided by zero."),
        ("__import__('os')", "I have no rule for that. You wrote: __import__('os')"),
        ("what is 5", "I have no rule for that. You wrote: what is 5"),
        ("what is love", "I have no rule for that. You wrote: what is love"),
        ("what is 2024-11-15?", "I have no rule for that. You wrote: what is 2024-11-15?"),
        (f"what is {'1+' * 150}1", f"I have no rule for that. You wrote: what is {'1+' * 150}1"),
        ("repeat after me: one  two ", "one  two"),
        ("repeat after me:", "…"),
        ("Count the words: one two\nthree", "3 words."),
        ("count the words: one", "1 word."),
        ("How many messages are there?", "3 messages so far: 2 from you, 1 from me."),
        ("what did I say first?", "You said: hi"),
        ("what did I say before?", "You said: hi"),
        ("what is my name?", "I do not know it; say: my name is …"),
        ("my name is Ada.", "Hello Ada, I will find that as long as it is in here."),
        ("left over\n\nwhat did you say\n\nrepeat after me: abc", "abc"),
    ],
)
def test_a_text_is_answered_by_its_rule(text: str, reply: str) -> None:
    assert later(text) == reply


def test_a_name_is_found_in_what_was_said_before() -> None:
    request = a_request(
        said("my name is Ada"),
        answered("Hello Ada."),
        said("and now?"),
        answered("…"),
        said("What is my name?"),
        model=OFFLINE,
    )

    assert answer(request) == "You said your name is Ada."


def test_nothing_was_said_before_the_first_message() -> None:
    request = a_request(said("what did I say first?"), model=OFFLINE)

    assert answer(request) == f"You have said nothing before this.\n\n{NOTE}"


def test_the_first_answer_says_what_it_is_and_how_to_get_another_model() -> None:
    assert answer(a_request(said("2+2"), model=OFFLINE)) == f"2+2 = 4\n\n{NOTE}"
    assert [name for name in KEYS if name not in NOTE] == []


KEYS = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "HOLDFAST_MODEL", "offline model"]


def test_a_request_without_a_user_is_answered_too() -> None:
    assert answer(a_request(model=OFFLINE)) == f"I am here.\n\n{NOTE}"


def test_a_long_text_is_echoed_in_part_and_met_by_no_rule() -> None:
    text = f"repeat after me: {'a' * 20_000}"

    assert later(text) == f"I have no rule for that. You wrote: {text[:2000]}…"


@given(st.text(max_size=60))
def test_any_text_gets_the_same_answer_twice(text: str) -> None:
    assert later(text) == later(text) != ""


async def test_it_streams_word_by_word_and_counts() -> None:
    request = a_request(said("hi"), answered("Hello!"), said("1+1"), model=OFFLINE, system="Be.")

    assert await heard(ModelRouter(), request) == [
        LlmTextDelta(text="1+1 "),
        LlmTextDelta(text="= "),
        LlmTextDelta(text="2"),
        Stopped(reason=StepStop.STOP, usage=Usage(input=4, output=3)),
    ]


async def test_there_is_only_one_offline_model() -> None:
    told = "There is one offline model, offline:holdfast; choose that."

    with pytest.raises(Invalid) as refused:
        ModelRouter().check(model_of("offline:other"))

    assert (refused.value.code, refused.value.message) == (Code.MODEL_NOT_FOUND, told)
    assert await heard(ModelRouter(), a_request(said("hi"), model="offline:other")) == [
        Failed(kind=FailureKind.BAD_REQUEST, message=told)
    ]
    ModelRouter().check(model_of(OFFLINE))
