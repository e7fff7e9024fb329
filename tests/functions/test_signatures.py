"""What the hints and the docstring of a function become: a schema, an error, converted values."""

import __future__

import functools
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast import Code, Invalid, Tool, ToolCallContext, tool
from holdfast.functions.signatures import InvalidArgumentsError, parse_docstring
from tests.functions import signatures
from tests.marks import each_case

FOLDER = Path(__file__).parent
SCHEMAS: dict[str, Any] = json.loads((FOLDER / "schemas.json").read_text())


def postponed(patch: pytest.MonkeyPatch) -> ModuleType:
    """Return the same functions with annotations that are texts."""
    source = (FOLDER / "signatures.py").read_text()
    found = ModuleType("tests.functions.postponed")
    # Classes look their annotations up in their module.
    patch.setitem(sys.modules, found.__name__, found)
    flags = __future__.annotations.compiler_flag
    exec(compile(source, "postponed.py", "exec", flags=flags), vars(found))
    return found


def built(function: Any, name: str) -> Any:
    """Return the schema of a function, or why it has none."""
    try:
        return tool(function, name=name, description="Do it.").parameters
    except Invalid as error:
        return f"{error.code}: {error.message}"


@each_case("name", signatures.NAMES)
def test_a_signature_has_its_schema_or_its_error(name: str) -> None:
    assert built(getattr(signatures, name), name) == SCHEMAS[name]


def test_the_table_is_complete() -> None:
    assert set(SCHEMAS) == set(signatures.NAMES)
    assert len(SCHEMAS) >= 45


def test_postponed_annotations_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    module = postponed(monkeypatch)

    assert {name: built(getattr(module, name), name) for name in signatures.NAMES} == SCHEMAS


def values(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    return tool(function, name="f", description="Do it.").signature.convert(arguments)


def test_a_function_gets_converted_values() -> None:
    found = values(signatures.data_class, {"a": {"x": 1}, "b": [{"x": 2, "y": 3}]})

    assert found == {"a": signatures.Point(1), "b": [signatures.Point(2, 3.0)]}


def test_a_model_is_read_by_its_class() -> None:
    found = values(signatures.model, {"a": {"value": 1, "children": [{"value": 2}]}})

    assert found["a"] == signatures.Node(value=1, children=[signatures.Node(value=2)])


FAULTS = [
    ("scalars", {"a": "3", "b": 1, "c": "", "d": True}, "Expected `int`, got `str` - at `$.a`"),
    ("scalars", {"a": 3.5, "b": 1, "c": "", "d": True}, "Expected `int`, got `float` - at `$.a`"),
    ("scalars", {"a": 1e17, "b": 1, "c": "", "d": True}, "Expected `int`, got `float` - at `$.a`"),
    ("scalars", {"a": True, "b": 1, "c": "", "d": True}, "Expected `int`, got `bool` - at `$.a`"),
    ("scalars", {"b": 1, "c": "", "d": True}, "Object missing required field `a`"),
    ("nothing", {"secret": 1}, "Object contains unknown field `secret`"),
    ("enums", {"a": "hunter2"}, "Invalid enum value - at `$.a`"),
    ("literal", {"a": "hunter2"}, "Invalid enum value - at `$.a`"),
    ("tagged", {"a": {"type": "hunter2"}}, "Invalid value - at `$.a.type`"),
    ("field", {"a": 10}, "Expected `int` <= 9 - at `$.a`"),
    ("model", {"a": {"value": "hunter2"}}, "Not a Node: int_type at value - at `$.a`"),
    ("numbers", {"a": "x", "b": "", "c": ""}, "Invalid decimal string - at `$.a`"),
]


@each_case(("name", "arguments", "message"), FAULTS)
def test_a_fault_names_the_path_and_never_the_value(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentsError) as caught:
        values(getattr(signatures, name), arguments)

    assert str(caught.value) == message
    assert "hunter2" not in message


def test_a_whole_float_is_taken_for_an_integer_at_any_depth() -> None:
    found = values(signatures.lists, {"a": [1.0, 2], "b": [], "c": []})

    assert found["a"] == [1, 2]
    assert [type(each) for each in found["a"]] == [int, int]


def test_keys_that_are_numbers_are_read_from_texts() -> None:
    assert values(signatures.dicts, {"a": {}, "b": {"1": "x"}, "c": {}})["b"] == {1: "x"}


def test_a_mutable_default_is_copied_for_each_call() -> None:
    first, second = (values(signatures.mutable_default, {}) for _ in range(2))
    first["a"].append(3)

    assert (first["a"], second["a"]) == ([1, 2, 3], [1, 2])


def test_what_a_call_changes_is_not_the_record() -> None:
    sent = {"a": {"list": [1]}}
    found = values(signatures.anything, sent)
    found["a"]["list"].append(2)

    assert sent == {"a": {"list": [1]}}


def bound(function: Any, arguments: dict[str, Any]) -> Any:
    made = tool(function, name="f", description="Do it.")
    context: Any = "the context"
    positional, keywords = made.signature.bind(made.signature.convert(arguments), context)
    return made(*positional, **keywords)


def test_a_function_is_called_by_place_and_by_name() -> None:
    def by_place(a: int = 1, b: int = 2, /, c: int = 3, *, d: int = 4) -> tuple[int, ...]:
        return a, b, c, d

    assert bound(by_place, {}) == (1, 2, 3, 4)
    assert bound(by_place, {"b": 20, "d": 40}) == (1, 20, 3, 40)


def test_the_context_is_passed_wherever_it_stands() -> None:
    def first(call: ToolCallContext, a: int) -> tuple[Any, int]:
        return call, a

    assert bound(first, {"a": 1}) == ("the context", 1)


def test_a_partial_keeps_what_it_has_bound() -> None:
    def send(text: str, key: str) -> str:
        return text + key

    assert bound(functools.partial(send, key="!"), {"text": "hi"}) == "hi!"
    with pytest.raises(InvalidArgumentsError):
        bound(functools.partial(send, key="!"), {"text": "hi", "key": "?"})


def test_a_tool_is_still_the_function() -> None:
    @tool
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    assert isinstance(double, Tool)
    assert (double(4), double.name, double.__name__) == (8, "double", "double")
    assert (double.description, double.__doc__) == ("Double a number.", "Double a number.")


def test_the_description_is_the_docstring_without_its_parameters() -> None:
    text = parse_docstring(signatures.google.__doc__)

    assert text.description == "Do it.\n\nReturns:\n    Nothing."


def ok(a: int) -> None:
    """Do it."""


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (lambda: None, {}, "a lambda cannot be a tool: it has no name; pass `name`."),
    (ok, {"name": "no good"}, "needs a name of at most 64 letters"),
    (ok, {"name": "x" * 65}, "needs a name of at most 64 letters"),
    (ok, {"name": "read_file"}, "read_file is the name of a tool of Holdfast"),
    (ok, {"name": "mcp_x"}, "mcp_x is the name of a tool of Holdfast"),
    (ok, {"name": "invoke_agent"}, "invoke_agent is the name of a tool of Holdfast"),
    (ok, {"name": "final_result"}, "final_result is the name of a tool of Holdfast"),
    (ok, {"description": " "}, "needs a description"),
    (ok, {"description": "x" * 4097}, "has a description of more than 4 KiB"),
    (ok, {"effect": "safe"}, "say pure, idempotent or unsafe"),
    (ok, {"approval": "yes"}, "say auto, ask, deny or mode"),
    (ok, {"timeout": 0}, "needs a timeout in seconds, above 0"),
    (ok, {"timeout": float("nan")}, "needs a timeout in seconds, above 0"),
    (ok, {"concurrency": 0}, "needs a concurrency above 0"),
    (ok, {"parallel": True}, "that needs the effect pure or idempotent"),
    (3, {"name": "three"}, "cannot be called; pass a function"),
    (staticmethod(ok), {"name": "x"}, "is an unbound method"),
    (signatures.scalars, {}, "needs a description"),
]


@each_case(("function", "rules", "message"), REFUSED)
def test_a_tool_that_cannot_be_is_refused_by_name(
    function: Any, rules: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid) as caught:
        tool(function, **rules)

    assert message in caught.value.message
    assert caught.value.code in {Code.TOOL_INVALID, Code.TOOL_NAME_TAKEN}


def test_the_digest_changes_with_what_a_model_sees_and_with_the_version() -> None:
    def other(a: str) -> None: ...

    digests = {
        tool(ok).digest,
        tool(ok, effect="pure").digest,
        tool(ok, version="2").digest,
        tool(ok, name="other").digest,
        tool(other, name="ok", description="Do it.").digest,
    }

    assert len(digests) == 5
    assert tool(ok).digest == tool(ok, description="Another text.", timeout=3).digest
