"""The table of tools: exactly those that were promised, each described to the last field."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from jsonschema import Draft202012Validator
from msgspec import Meta, Struct

from holdfast.domain.tokens import Scope
from holdfast.mcp.server import TOOLS
from holdfast.mcp.tool_types import arguments_of, input_schema
from holdfast.observations.model import Text, UnitId
from tests.marks import each_case
from tests.mcp.clients import Client
from tests.mcp.payloads import COMPLETE
from tests.observations.claims import FEATURE_UNIT

PROMISED = {
    "submit_agent_session",
    "query_agent_history",
    "query_entity_timeline",
    "restore_checkpoint",
    "correct",
    "delete_agent_session",
    "restore_agent_session",
    "list_observations",
    "search_sessions",
    "get_session",
    "list_unknown_calls",
    "settle_call",
    "submit_entity",
    "query_entities",
}
CHANGING = {
    "submit_agent_session",
    "correct",
    "delete_agent_session",
    "restore_agent_session",
    "settle_call",
    "submit_entity",
}


def test_the_tools_are_those_that_were_promised() -> None:
    assert set(TOOLS) == PROMISED
    assert {name for name, tool in TOOLS.items() if tool.needs is Scope.WRITE} == CHANGING


@each_case("name", sorted(PROMISED))
def test_every_field_that_goes_in_or_out_is_described(name: str) -> None:
    tool = TOOLS[name]
    bare = [
        path
        for side, schema in (("in", tool.input_schema()), ("out", tool.output_schema()))
        for path, member in members(schema, side)
        if not member.get("description")
    ]

    assert bare == []
    assert tool.description
    assert tool.title


@each_case("name", sorted(PROMISED))
def test_schemas_are_schemas_of_objects(name: str) -> None:
    for schema in (TOOLS[name].input_schema(), TOOLS[name].output_schema()):
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        json.dumps(schema)


def test_a_field_without_a_description_would_be_found() -> None:
    schema = {"properties": {"a": {"items": {"properties": {"b": {}}}, "description": "x"}}}

    assert [path for path, each in members(schema, "in") if "description" not in each] == ["in.a.b"]


def test_the_schema_of_a_submission_takes_what_is_taken() -> None:
    judge = Draft202012Validator(TOOLS["submit_agent_session"].input_schema())

    assert judge.is_valid(COMPLETE)
    assert judge.is_valid(COMPLETE | {"mood": "good"})
    assert not judge.is_valid(COMPLETE | {"actions": []})
    assert not judge.is_valid({"session_id": "abc123"})


def test_the_texts_say_what_a_time_is_and_what_may_be_null() -> None:
    members = TOOLS["submit_agent_session"].input_schema()["properties"]

    time = "An ISO 8601 date or time; UTC if it has no offset."
    assert members["started_at"]["description"] == f"When the session started. {time}"
    assert members["ended_at"]["description"].endswith(f"May be null. {time}")
    checkpoint = members["checkpoints"]["items"]["properties"]
    assert checkpoint["timestamp"]["description"] == f"When it was reached. {time}"
    assert "Null clears duration and ended_at" in TOOLS["submit_agent_session"].description


def test_the_schema_of_every_type_is_in_the_tool_that_takes_it() -> None:
    fields = TOOLS["submit_entity"].input_schema()["properties"]["fields"]
    judge = Draft202012Validator(fields)

    assert [(each["title"], each["required"]) for each in fields["anyOf"]] == [
        ("feature_unit", ["id", "description", "status", "created_at", "updated_at"]),
        (
            "release",
            [
                "id",
                "version",
                "feature_units",
                "status",
                "acceptance_criteria",
                "created_at",
                "updated_at",
            ],
        ),
        ("agent_decision", ["decision", "rationale", "timestamp"]),
        ("validation_result", ["validation_type", "status", "timestamp"]),
    ]
    assert judge.is_valid(FEATURE_UNIT)
    assert not judge.is_valid({**FEATURE_UNIT, "status": "unheard of"})


def test_every_kind_has_a_schema() -> None:
    class Taken(Struct, kw_only=True):
        ids: Annotated[
            list[UnitId], Meta(description="Ids.", extra_json_schema={"uniqueItems": True})
        ]
        words: Annotated[Text | None, Meta(description="Words.")] = None

    assert input_schema(arguments_of(Taken), is_open=True) == {
        "type": "object",
        "properties": {
            "ids": {
                "description": "Ids.",
                "type": "array",
                "items": {"type": "string", "pattern": "^FU-[0-9]+$"},
                "uniqueItems": True,
            },
            "words": {
                "description": "Words. May be null.",
                "type": "string",
                "maxLength": 65_536,
            },
        },
        "required": ["ids"],
        "additionalProperties": True,
    }


@pytest.mark.anyio
async def test_tools_are_listed_with_schemas_and_hints(client: Client) -> None:
    listed = (await client.call("tools/list"))["result"]["tools"]

    assert {each["name"] for each in listed} == PROMISED
    for each in listed:
        tool = TOOLS[each["name"]]
        assert each["inputSchema"] == tool.input_schema()
        assert each["outputSchema"] == tool.output_schema()
        assert each["annotations"] == {
            "title": tool.title,
            "readOnlyHint": each["name"] not in CHANGING,
            "idempotentHint": True,
            "destructiveHint": tool.is_destructive,
            "openWorldHint": False,
        }
    again = await client.call("tools/list", cursor="x")
    assert again["error"]["code"] == -32602


def members(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every member of every object in a schema, and where it is."""
    if isinstance(schema, list):
        for each in schema:
            yield from members(each, path)
    if not isinstance(schema, dict):
        return
    for name, member in schema.get("properties", {}).items():
        yield f"{path}.{name}", member
        yield from members(member, f"{path}.{name}")
    for name, each in schema.items():
        if name == "$defs":
            for title, definition in each.items():
                yield from members(definition, f"{path}.{title}")
        elif name in {"items", "anyOf", "additionalProperties", "prefixItems"}:
            yield from members(each, path)
