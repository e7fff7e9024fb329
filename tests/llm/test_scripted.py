"""The scripted model: what it streams, step by step, and how it refuses a faulty script."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import model_of
from holdfast.llm.router import ModelRouter
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    LlmDelta,
    LlmReasoningDelta,
    LlmTextDelta,
    ReasoningEnded,
    StepStop,
    Stopped,
)
from tests.engine.virtual_time import VIRTUAL_TIME
from tests.llm.builders import a_request, a_script, answered, called, heard, said
from tests.marks import each_case

pytestmark = pytest.mark.anyio

HELLO = said("hello there")


def stopped(*, input: int = 2, output: int = 0, reasoning: int = 0) -> Stopped:
    usage = Usage(input=input, output=output, reasoning=reasoning)
    return Stopped(reason=StepStop.STOP, usage=usage)


def texts(*words: str) -> list[LlmDelta]:
    return [LlmTextDelta(text=word) for word in words]


async def test_a_text_is_streamed_word_by_word_and_counted(tmp_path: Path) -> None:
    model = a_script(tmp_path, "- text: |\n    Good  day,\n    you.\n")

    deltas = await heard(ModelRouter(), a_request(HELLO, model=model, system="Be kind, always."))

    assert deltas == [*texts("Good  ", "day,\n", "you.\n"), stopped(input=5, output=3)]


async def test_reasoning_comes_first_and_counts_as_output(tmp_path: Path) -> None:
    model = a_script(tmp_path, "- {reasoning: let me see, text: Yes.}")

    assert await heard(ModelRouter(), a_request(HELLO, model=model)) == [
        LlmReasoningDelta(text="let "),
        LlmReasoningDelta(text="me "),
        LlmReasoningDelta(text="see"),
        ReasoningEnded(),
        LlmTextDelta(text="Yes."),
        stopped(output=4, reasoning=3),
    ]


@each_case(
    ("chunks", "pieces"),
    [(1, ["abcdef"]), (2, ["abc", "def"]), (4, ["a", "bc", "d", "ef"]), (99, list("abcdef"))],
)
async def test_chunks_decide_how_often_the_text_is_cut(
    tmp_path: Path, chunks: int, pieces: list[str]
) -> None:
    model = a_script(tmp_path, f"- {{text: abcdef, chunks: {chunks}}}")

    deltas = await heard(ModelRouter(), a_request(HELLO, model=model))

    assert deltas == [*texts(*pieces), stopped(output=1)]


@each_case("step", ["{}", "{text: ''}", "{delay_ms: 0}"])
async def test_an_answer_may_be_empty(tmp_path: Path, step: str) -> None:
    model = a_script(tmp_path, f"- {step}")

    assert await heard(ModelRouter(), a_request(HELLO, model=model)) == [stopped()]


async def test_calls_are_streamed_with_ids_that_are_made_where_none_is_free(tmp_path: Path) -> None:
    model = a_script(
        tmp_path,
        """
        - text: Looking.
          tool_calls:
            - {id: mine, name: look, arguments: {path: a b}}
            - {id: mine, name: look, arguments: "{broken"}
            - {id: used, name: look}
        """,
    )
    request = a_request(HELLO, *called("used", result="x"), model=model, ordinal=1)

    assert await heard(ModelRouter(), request) == [
        LlmTextDelta(text="Looking."),
        CallStarted(id="mine", name="look"),
        CallArguments(id="mine", text='{"path":"a b"}'),
        CallEnded(id="mine"),
        CallStarted(id="call_1_2", name="look"),
        CallArguments(id="call_1_2", text="{broken"),
        CallEnded(id="call_1_2"),
        CallStarted(id="call_1_3", name="look"),
        CallArguments(id="call_1_3", text="{}"),
        CallEnded(id="call_1_3"),
        Stopped(reason=StepStop.TOOL_USE, usage=Usage(input=3, output=5)),
    ]


@each_case("kind", list(FailureKind))
async def test_every_kind_of_failure_can_be_scripted(tmp_path: Path, kind: FailureKind) -> None:
    model = a_script(tmp_path, f"- error: {kind}")

    message = f"The script answers this request with the failure {kind}."
    assert await heard(ModelRouter(), a_request(HELLO, model=model)) == [
        Failed(kind=kind, message=message)
    ]


async def test_an_error_may_follow_text_and_carry_status_and_retry_after(tmp_path: Path) -> None:
    error = "{kind: rate_limit, status: 429, retry_after: 2.5}"
    model = a_script(tmp_path, f"- {{text: Half, error: {error}}}")

    assert await heard(ModelRouter(), a_request(HELLO, model=model)) == [
        LlmTextDelta(text="Half"),
        Failed(
            kind=FailureKind.RATE_LIMIT,
            message="The script answers this request with the failure rate_limit.",
            status=429,
            retry_after=2.5,
        ),
    ]


async def test_a_given_usage_is_reported_as_it_stands(tmp_path: Path) -> None:
    usage = "{input: 7, output: 5, cache_read: 3, cache_write: 2, reasoning: 1}"
    model = a_script(tmp_path, f"- {{text: Hi, usage: {usage}}}")

    assert await heard(ModelRouter(), a_request(HELLO, model=model)) == [
        LlmTextDelta(text="Hi"),
        Stopped(
            reason=StepStop.STOP,
            usage=Usage(input=7, output=5, cache_read=3, cache_write=2, reasoning=1),
        ),
    ]


async def answer_to(model: str, *messages: Any, ordinal: int) -> str:
    deltas = await heard(ModelRouter(), a_request(*messages, model=model, ordinal=ordinal))
    return "".join(delta.text for delta in deltas if isinstance(delta, LlmTextDelta))


async def test_the_nth_request_gets_the_nth_step_with_repeats_counted(tmp_path: Path) -> None:
    model = a_script(tmp_path, "- text: a\n- {text: b, repeat: 2}\n- text: c\n")

    answers = [await answer_to(model, HELLO, ordinal=ordinal) for ordinal in (1, 2, 3, 4)]

    assert answers == ["a", "b", "b", "c"]


async def test_a_request_beyond_the_last_step_fails_naming_file_and_place(tmp_path: Path) -> None:
    model = a_script(tmp_path, "- {text: a, repeat: 2}")

    deltas = await heard(ModelRouter(), a_request(HELLO, model=model, ordinal=3))

    assert deltas == [
        Failed(
            kind=FailureKind.BAD_REQUEST,
            message=f"The script {tmp_path}/script.yaml, step 3: it has no step for request 3 of "
            "the session. Correct the file or choose another model.",
        )
    ]


RULES = """
steps:
  - text: in order
match:
  - {contains: weather, step: {text: sunny}}
  - {regex: '(?i)^HEL+O', step: 1}
  - {regex: '\\d+', step: {text: number}}
"""


@each_case(
    ("messages", "answer"),
    [
        ([said("the weather?")], "sunny"),
        ([said("The Weather?")], "in order"),
        ([said("helllo")], "in order"),
        ([said("weather 7")], "sunny"),
        ([said("room 7")], "number"),
        ([said("the weather?"), answered("sunny"), said("room 7")], "number"),
        ([said("the weather?"), *called("c", result="x")], "in order"),
        ([], "in order"),
    ],
)
async def test_rules_choose_by_the_last_user_text_unless_a_tool_result_follows(
    tmp_path: Path, messages: list[Any], answer: str
) -> None:
    model = a_script(tmp_path, RULES)

    assert await answer_to(model, *messages, ordinal=1) == answer


async def test_no_pattern_keeps_the_loop_waiting(tmp_path: Path) -> None:
    model = a_script(
        tmp_path, "steps: [{text: no}]\nmatch: [{regex: '^(a+)+$', step: {text: yes}}]"
    )

    assert await answer_to(model, said("a" * 100_000 + "!"), ordinal=1) == "no"
    assert await answer_to(model, said("a" * 100_000), ordinal=1) == "yes"


async def test_a_json_file_is_a_script_too(tmp_path: Path) -> None:
    model = a_script(tmp_path, '\ufeff[{"text": "from json"}]', name="script.JSON")

    assert await answer_to(model, HELLO, ordinal=1) == "from json"


async def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    llm = ModelRouter()
    model = a_script(tmp_path, "- text: old")
    request = a_request(HELLO, model=model)
    before = await heard(llm, request)
    a_script(tmp_path, "- text: newer")

    assert (before, await heard(llm, request)) == (
        [*texts("old"), stopped(output=1)],
        [*texts("newer"), stopped(output=1)],
    )


async def test_many_scripts_can_be_played_by_one_model(tmp_path: Path) -> None:
    llm = ModelRouter()

    for number in range(70):
        model = a_script(tmp_path, f"- text: '{number}'", name=f"{number}.yaml")
        request = a_request(HELLO, model=model)
        expected = [*texts(str(number)), stopped(output=1)]
        assert [await heard(llm, request), await heard(llm, request)] == [expected, expected]


class TestDelay:
    """Waiting is the event loop's, so its clock tells whether it happened."""

    @pytest.fixture
    def anyio_backend(self) -> Any:
        return VIRTUAL_TIME

    async def test_a_delay_passes_before_the_first_byte(self, tmp_path: Path) -> None:
        model = a_script(tmp_path, "- {text: late, delay_ms: 90000}")
        llm = ModelRouter()
        llm.check(model_of(model))
        start = asyncio.get_running_loop().time()

        deltas = await heard(llm, a_request(HELLO, model=model))

        assert deltas == [*texts("late"), stopped(output=1)]
        assert asyncio.get_running_loop().time() - start == pytest.approx(90, abs=0.01)


UNKNOWN_KIND = (
    "a kind of failure must be one of "
    "rate_limit, unavailable, auth, too_long, bad_request, filtered, "
    "cancelled, unknown"
)

TYPO = "Object contains unknown field `txt`"
NO_PATTERN = (
    "this is not a linear-time regular expression; check its brackets and "
    "repetitions, and remove look-around and back-references"
)

FAULTS = [
    ("", "", "Expected `object`, got `null`"),
    ("hello", "", "Expected `object`, got `str`"),
    ("[]", "", "it has neither steps nor match rules"),
    ("{}", "", "it has neither steps nor match rules"),
    ("{steps: []}", "", "it has neither steps nor match rules"),
    ("{stepz: []}", "", "Object contains unknown field `stepz`"),
    ("{steps: 3}", "steps", "Expected `array`, got `int`"),
    ("- text: a\n- b", "step 2", "Expected `object`, got `str`"),
    ("- txt: a", "step 1", TYPO),
    ("- text: 5", "step 1, text", "Expected `str`, got `int`"),
    ("- {text: a, chunks: 0}", "step 1, chunks", "Expected `int` >= 1"),
    ("- {text: a, repeat: 0}", "step 1, repeat", "Expected `int` >= 1"),
    ("- {text: a, delay_ms: -1}", "step 1, delay_ms", "Expected `int` >= 0"),
    ("- {text: a, delay_ms: soon}", "step 1, delay_ms", "Expected `int`, got `str`"),
    ("- {text: a, usage: {input: -1}}", "step 1, usage, input", "Expected `int` >= 0"),
    ("- {text: a, usage: {tokens: 1}}", "step 1, usage", "Object contains unknown field `tokens`"),
    ("- error: broken", "step 1, error", UNKNOWN_KIND),
    ("- error: {kind: broken}", "step 1, error, kind", UNKNOWN_KIND),
    ("- error: {status: 500}", "step 1, error", "Object missing required field `kind`"),
    ("- error: {kind: auth, status: 5}", "step 1, error, status", "Expected `int` >= 100"),
    ("- tool_calls: [{id: a}]", "step 1, tool call 1", "Object missing required field `name`"),
    (
        "- tool_calls: [{name: a}, {name: ''}]",
        "step 1, tool call 2, name",
        "Expected `str` of length >= 1",
    ),
    (
        "- tool_calls: [{name: a, arguments: [1]}]",
        "step 1, tool call 1, arguments",
        "Expected `str | object`, got `array`",
    ),
    ("match: [{contains: a}]", "match rule 1", "Object missing required field `step`"),
    ("match: [{step: {text: a}}]", "match rule 1", "a rule must have either contains or regex"),
    (
        "match: [{contains: a, regex: a, step: {text: a}}]",
        "match rule 1",
        "a rule must have either contains or regex",
    ),
    ("match: [{contains: a, step: 1}]", "match rule 1, step", "there are only 0 steps"),
    ("match: [{contains: a, step: 0}]", "match rule 1, step", "Expected `int` >= 1"),
    ("match: [{contains: a, step: {txt: a}}]", "match rule 1, step", TYPO),
    *(
        (f"match: [{{regex: '{regex}', step: {{text: a}}}}]", "match rule 1, regex", NO_PATTERN)
        for regex in ("(", "(?=a)", "(?<!a)b", r"(a)\1", "(?>a)", "a{1001}", "(x{500}){500}")
    ),
    ("- text: a\n- text: [", "line 2, column 10", "this is not valid YAML"),
    (
        "a: 1\na: 2",
        "line 2, column 1",
        "a repeated key in a mapping cannot be used in Holdfast's YAML files",
    ),
    ("- text: \x07", "", "the text contains a character that YAML does not allow"),
]

JSON_FAULTS = [
    ('[{"text": "a"},]', "line 1, column 16", "this is not valid JSON"),
    ('[{"text": "a", "text": "b"}]', "", "a key is repeated"),
    ('[{"text": NaN}]', "", "NaN is not a JSON number"),
    (
        '{"match": [{"regex": "\\ud800", "step": {"text": "a"}}]}',
        "match rule 1, regex",
        NO_PATTERN,
    ),
    ('[{"text": "\\ud800"}]', "step 1", "a text contains a lone surrogate"),
    ("[" * 65 + "]" * 65, "", "it is nested deeper than 64 levels"),
    ("[" * 100_000, "", "it is nested deeper than 64 levels"),
    ('[{"text": ' + "9" * 5000 + "}]", "", "a number is too long"),
]


@each_case(
    ("name", "content", "place", "problem"),
    [
        *(("bad.yaml", *fault) for fault in FAULTS),
        *(("bad.json", *fault) for fault in JSON_FAULTS),
    ],
)
async def test_a_faulty_script_is_refused_when_checked_and_fails_the_request(
    tmp_path: Path, name: str, content: str, place: str, problem: str
) -> None:
    model = a_script(tmp_path, content, name=name)
    where = f"{tmp_path / name}, {place}" if place else f"{tmp_path / name}"
    message = f"The script {where}: {problem}. Correct the file or choose another model."

    with pytest.raises(Invalid) as refused:
        ModelRouter().check(model_of(model))

    assert refused.value.body() == {
        "error": Code.SCRIPT_INVALID,
        "message": message,
        "details": {"file": str(tmp_path / name), "place": place},
    }
    assert await heard(ModelRouter(), a_request(HELLO, model=model)) == [
        Failed(kind=FailureKind.BAD_REQUEST, message=message)
    ]


def unreadable(folder: Path, case: str) -> str:
    """Make something that is no script and return its name."""
    path = folder / case
    if case == "folder":
        path.mkdir()
    if case == "pipe":
        os.mkfifo(path)
    if case == "latin":
        path.write_bytes(b"- text: caf\xe9")
    if case == "large":
        path.write_bytes(b"#" * (2 << 20) + b"\n")
    return str(path)


@each_case(
    ("case", "place", "problem"),
    [
        ("missing", "", "it cannot be read (No such file or directory)"),
        ("folder", "", "it is not a file"),
        ("pipe", "", "it is not a file"),
        ("latin", "byte 12", "it is not UTF-8"),
        ("large", "", "it is larger than 2 MiB"),
        ("n" * 300, "", "it cannot be read (File name too long)"),
    ],
)
async def test_what_cannot_be_read_is_refused(
    tmp_path: Path, case: str, place: str, problem: str
) -> None:
    name = unreadable(tmp_path, case)

    with pytest.raises(Invalid) as refused:
        ModelRouter().check(model_of(f"scripted:{name}"))

    where = f"{name}, {place}" if place else name
    assert (refused.value.code, refused.value.message) == (
        Code.SCRIPT_INVALID,
        f"The script {where}: {problem}. Correct the file or choose another model.",
    )


def test_a_sound_script_passes_the_check(tmp_path: Path) -> None:
    ModelRouter().check(model_of(a_script(tmp_path, RULES)))


def test_a_json_script_is_played_without_the_yaml_package(tmp_path: Path) -> None:
    model = a_script(tmp_path, '[{"text": "a"}]', name="script.json")
    program = (
        "import sys; from holdfast.domain.models import model_of; "
        "from holdfast.llm.router import ModelRouter; "
        f"ModelRouter().check(model_of({model!r})); print('ruamel' in str(sorted(sys.modules)))"
    )

    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert run.stdout == "False\n"
