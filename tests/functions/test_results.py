"""What a function returns or raises, as the model and the record get it."""

import asyncio
import dataclasses
import datetime
import decimal
import enum
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import OutcomeUnknown, ToolCallContext, ToolFailed, tool
from holdfast.domain.messages import Media, ResultStatus, media_handle
from holdfast.functions.results import UnrecordableError, plain
from tests.functions.stage import result_of, results, scripted, sent
from tests.marks import each_case
from tests.tooled import call

pytestmark = pytest.mark.anyio


@dataclasses.dataclass
class Point:
    x: int
    when: datetime.date


class Box(msgspec.Struct, rename="camel", tag="box"):
    inner_size: int
    colour: "Colour"


class Colour(enum.Enum):
    RED = "red"


class Item(pydantic.BaseModel):
    price: decimal.Decimal
    names: set[str]


DAY = datetime.date(2026, 1, 2)
ID = uuid.UUID(int=1)
VALUES = [
    ("text", "text"),
    (None, None),
    (True, True),
    (3, 3),
    (2.5, 2.5),
    ([1, (2, 3)], [1, [2, 3]]),
    ({"a": {1}}, {"a": [1]}),
    ({1: "one", DAY: "day", Colour.RED: "red"}, {"1": "one", "2026-01-02": "day", "red": "red"}),
    (MappingProxyType({"a": 1}), {"a": 1}),
    (Point(1, DAY), {"x": 1, "when": "2026-01-02"}),
    (Box(2, Colour.RED), {"type": "box", "innerSize": 2, "colour": "red"}),
    (Item(price=decimal.Decimal("1.50"), names={"a"}), {"price": "1.50", "names": ["a"]}),
    (decimal.Decimal("0.10"), "0.10"),
    (ID, str(ID)),
    (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02T00:00:00Z"),
    (b"abc", b"abc"),
    (
        Media(mime_type="text/plain", ref="media://x"),
        {"mime_type": "text/plain", "ref": "media://x", "name": None, "byte_length": None},
    ),
]


@each_case(("value", "expected"), VALUES)
def test_a_result_becomes_json(value: Any, expected: Any) -> None:
    assert plain(value) == expected


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


FAULTS = [
    (object(), "object at $ is not JSON"),
    ({"a": [1, {2: Path("x")}]}, "PosixPath at $.a[1].2 is not JSON"),
    ({(1, 2): 3}, "the key of type tuple at $ is no text"),
    ([float("nan")], "the number at $[0] is not finite"),
    (float("inf"), "the number at $ is not finite"),
    (1 << 63, "the integer at $ has more than 63 bits"),
    (-(1 << 63), "the integer at $ has more than 63 bits"),
    ("a\x00b", "the text at $ has a NUL or a lone surrogate"),
    ({"k": "\ud800"}, "the text at $.k has a NUL or a lone surrogate"),
    (nested(65), "it is nested deeper than 64 levels"),
    ("x" * ((16 << 20) + 1), "it has more than 16 MiB"),
]


@each_case(("value", "message"), FAULTS)
def test_a_result_that_cannot_be_recorded_is_named(value: Any, message: str) -> None:
    with pytest.raises(UnrecordableError) as caught:
        plain(value)

    assert str(caught.value) == message


def both(act: Callable[[], Any], **rules: Any) -> list[Any]:
    """Return the same act as a function in a thread and as one in a task."""

    @tool(name="run", description="Run.", **rules)
    def in_thread() -> Any:
        return act()

    @tool(name="run", description="Run.", **rules)
    async def in_task() -> Any:
        await asyncio.sleep(0)
        return act()

    return [in_thread, in_task]


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


ENDS: list[tuple[Callable[[], Any], dict[str, Any], tuple[str, str | None]]] = [
    (lambda: {"a": 1}, {}, ("ok", None)),
    (raising(ToolFailed("Try again at noon.")), {}, ("error/failed", "Try again at noon.")),
    (raising(ToolFailed("")), {}, ("error/failed", "run failed.")),
    (
        raising(OutcomeUnknown("The line went dead.")),
        {},
        ("unknown/unknown", "The line went dead."),
    ),
    (
        raising(ValueError("the password is hunter2")),
        {},
        ("error/failed", "run failed with ValueError; see the log of Holdfast for details."),
    ),
    (
        raising(KeyError("x")),
        {"on_error": lambda error: f"It was a {type(error).__name__}."},
        ("error/failed", "It was a KeyError."),
    ),
    (
        raising(KeyError("x")),
        {"on_error": lambda _: None},
        ("error/failed", "run failed with KeyError; see the log of Holdfast for details."),
    ),
    (
        raising(KeyError("x")),
        {"on_error": raising(ValueError("again"))},
        ("error/failed", "run failed with KeyError; see the log of Holdfast for details."),
    ),
    (
        raising(SystemExit(3)),
        {},
        ("error/failed", "run failed with SystemExit; see the log of Holdfast for details."),
    ),
    (
        raising(KeyboardInterrupt()),
        {},
        ("error/failed", "run failed with KeyboardInterrupt; see the log of Holdfast for details."),
    ),
    (
        raising(asyncio.CancelledError()),
        {},
        ("error/failed", "run failed with CancelledError; see the log of Holdfast for details."),
    ),
    (
        raising(StopIteration()),
        {},
        ("error/failed", None),
    ),
    (
        object,
        {},
        (
            "error/failed",
            "run was run, but its result cannot be recorded: object at $ is not JSON.",
        ),
    ),
]


@pytest.mark.parametrize("number", range(len(ENDS)))
@pytest.mark.parametrize("kind", ["thread", "task"])
async def test_every_end_of_a_function_is_a_result(home: Path, number: int, kind: str) -> None:
    act, rules, (outcome, message) = ENDS[number]
    function = both(act, **rules)[kind == "task"]

    found = await result_of(home, function)

    code = f"/{found.error.code}" if found.error else ""
    assert f"{found.status}{code}" == outcome
    if message is not None:
        assert found.error is not None
        assert found.error.message == message


async def test_the_text_of_an_exception_is_only_in_the_log(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (function, _) = both(raising(ValueError("the number is 4711")))

    with caplog.at_level(logging.ERROR):
        found = await result_of(home, function)

    assert "4711" not in str(found)
    assert "4711" in caplog.text


async def test_a_function_that_forgot_to_await_is_named(home: Path) -> None:
    async def inner() -> None: ...

    (function, _) = both(inner)

    found = await result_of(home, function)

    assert found.error is not None
    assert "coroutine at $ is not JSON" in found.error.message


async def test_bytes_are_kept_and_named_by_their_handle(home: Path) -> None:
    @tool(effect="pure")
    async def picture(call: ToolCallContext) -> dict[str, Any]:
        """Draw."""
        return {"raw": b"\x89PNG", "kept": call.keep(b"%PDF-", "application/pdf")}

    async with sent(scripted(home, call("picture")), picture) as (hf, session):
        (found,) = await results(hf, session)
        raw, kept = found.result["raw"], found.result["kept"]
        assert (raw, kept) == (media_handle(b"\x89PNG"), media_handle(b"%PDF-"))
        assert await hf.media.read(hf.owner, session.id, raw) == b"\x89PNG"
        assert await hf.media.read(hf.owner, session.id, kept) == b"%PDF-"
    assert found.status is ResultStatus.OK


async def test_a_large_result_is_bounded_like_any_other(home: Path) -> None:
    (_, function) = both(lambda: "line\n" * 100_000)

    found = await result_of(home, function)

    assert found.status is ResultStatus.OK
    assert "bytes omitted; read_output reads them from media://" in found.result
