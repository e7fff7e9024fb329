"""What is searched of a row: what people would look for."""

from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Compaction,
    Location,
    Media,
    Notice,
    NoticeCode,
    Part,
    Plan,
    PlanStep,
    Reasoning,
    ResultStatus,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.search.tokenizer import text_of, text_of_value, tool_of
from tests.marks import each_case

CALL = ToolCall(
    id=CallId("c1"),
    name="find_text",
    arguments={"pattern": "tide", "in": ["a.txt", {"deep": 7}], "is": True, "not": None},
    title="Look",
    locations=(Location(path="src/a.py", line=3),),
)
RESULT = ToolResult(
    call_id=CallId("c1"),
    name="find_text",
    status=ResultStatus.ERROR,
    result={"count": 1.5},
    error=ToolError(code="too_large", message="Too much."),
)


@each_case(
    ("part", "words"),
    [
        (Text(text="hello"), ["hello"]),
        (Reasoning(text="a thought"), ["a thought"]),
        (Notice(code=NoticeCode.ERROR, text="Failed."), ["Failed."]),
        (Media(mime_type="image/png", ref="media://x", name="cat.png"), ["cat.png"]),
        (Media(mime_type="image/png", ref="media://x"), [""]),
        (CALL, ["find_text", "Look", "tide", "a.txt", "7", "src/a.py"]),
        (RESULT, ["find_text", "1.5", "too_large", "Too much."]),
        (ToolResult(call_id=CallId("c"), name="x", status=ResultStatus.OK), ["x"]),
        (Plan(steps=(PlanStep(text="one"), PlanStep(text="two"))), ["one", "two"]),
        (Compaction(summary="All in all.", dropped_through=3), ["All in all."]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_part_has_this_text(part: Part, words: list[str]) -> None:
    assert text_of((part,)) == "\n".join(words)


def test_parts_follow_one_another() -> None:
    assert text_of((Text(text="a"), Text(text="b"))) == "a\nb"
    assert text_of(()) == ""


def test_calls_and_results_are_of_a_tool() -> None:
    assert [tool_of(parts) for parts in ((CALL,), (RESULT,), (Text(text="a"),), ())] == [
        "find_text",
        "find_text",
        None,
        None,
    ]


def test_a_value_is_read_however_deep_it_is() -> None:
    deep: object = "bottom"
    for _ in range(5_000):
        deep = [deep]

    assert text_of_value({"a": deep, "b": ("c",)}) == "bottom\nc"
