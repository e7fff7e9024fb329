"""The document: valid, committed, complete, and exact about what every route can answer."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from holdfast.domain.errors import Code
from holdfast.http import repo_sessions
from holdfast.http.app import V1_ROUTES, build_route_table
from holdfast.http.metrics import Metrics
from holdfast.http.openapi.document import PATH_PARAMETERS, build_document, names_in
from holdfast.http.openapi.responses import HEADERS, errors_of
from holdfast.http.openapi.schemas import REFINEMENTS
from holdfast.http.routing import AGENT_SESSION_PATH, SESSION_PATH, Route
from holdfast.http.security import server_names
from tests.http.openapi.render import DOCUMENT, nobody, render, well
from tests.http.v1.client import Visitor
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio

ROUTES = (*V1_ROUTES, *repo_sessions.routes)


MADE = build_document(
    build_route_table(well, Metrics(), server_names(8765), "0", nobody).routes, "0"
)
PLAIN = json.loads(json.dumps(MADE))
EXAMPLES = {
    name: schema["examples"][0]
    for name, schema in PLAIN["components"]["schemas"].items()
    if "examples" in schema
}


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in PLAIN["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


@demands("S2-009")
def test_the_committed_document_is_the_one_that_the_routes_make() -> None:
    assert DOCUMENT.read_text("utf-8") == render(), "run: python -m tests.http.openapi.render"


async def test_the_server_shows_the_document_of_its_version(visitor: Visitor) -> None:
    answer = await visitor.get("/openapi.json")

    assert answer.document["paths"] == PLAIN["paths"]
    assert answer.document["info"]["version"] == "0"


def test_it_is_a_valid_document() -> None:
    validate(PLAIN)


def test_every_route_is_in_it_under_its_own_name() -> None:
    named = {told: operation["operationId"] for told, operation in operations()}

    assert {f"{r.method} {r.path}": r.name for r in ROUTES}.items() <= named.items()
    assert len(set(named.values())) == len(named)
    tags = {tag["name"] for tag in PLAIN["tags"]}
    assert {tag for _, operation in operations() for tag in operation["tags"]} == tags


def test_the_page_names_every_path() -> None:
    page = DOCUMENT.with_name("http.md").read_text("utf-8")
    named = {each.split(" ")[-1] for each in re.findall(r"`((?:[A-Z]+ )?(?:/|B)[^`?]*)`", page)}

    paths = {
        path.replace(AGENT_SESSION_PATH, "B").replace(SESSION_PATH, "B") for path in PLAIN["paths"]
    }
    assert sorted(paths - named) == []


def test_every_placeholder_says_what_may_stand_there() -> None:
    assert {name for path in PLAIN["paths"] for name in names_in(path)} == set(PATH_PARAMETERS)


@each_case("route", ROUTES, ids=lambda route: route.name)
def test_every_code_of_a_route_is_told_with_its_status_and_an_example(route: Route) -> None:
    answers = PLAIN["paths"][route.path][route.method.lower()]["responses"]

    told = {
        code
        for status, codes in errors_of(route).items()
        for code in codes
        if status not in route.responses
    }
    assert set(route.errors) <= told
    for status, codes in errors_of(route).items():
        examples = answers[str(status)]["content"]["application/json"]["examples"]
        assert set(examples) == set(codes)
    assert {Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.METHOD_NOT_ALLOWED} <= told
    assert set(map(str, route.responses)) <= set(answers)


@each_case("route", ROUTES, ids=lambda route: route.name)
def test_every_body_has_an_example_that_is_one(route: Route) -> None:
    operation = PLAIN["paths"][route.path][route.method.lower()]

    if route.body not in {None, bytes}:
        content = operation["requestBody"]["content"]["application/json"]
        for each in content["examples"].values():
            validator(content["schema"]).validate(each["value"])
    for status in route.responses:
        content = operation["responses"][str(status)].get("content", {})
        if "application/json" in content:
            assert exemplified(content["application/json"]["schema"])


def exemplified(schema: dict[str, Any]) -> bool:
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[-1] in EXAMPLES
    return any(map(exemplified, schema.get("anyOf", ()))) or exemplified(schema["items"])


@each_case("name", sorted(EXAMPLES))
def test_an_example_is_one_of_its_type(name: str) -> None:
    validator({"$ref": f"#/components/schemas/{name}"}).validate(EXAMPLES[name])


def test_nothing_is_said_of_what_is_not_there() -> None:
    schemas = PLAIN["components"]["schemas"]

    assert set(REFINEMENTS) <= set(schemas)
    used = json.dumps(PLAIN["paths"])
    assert [name for name in HEADERS if f"/headers/{name}" not in used] == []
    names = {name.lower() for name in HEADERS}
    assert {
        name for route in ROUTES for each in route.response_headers.values() for name in each
    } <= names


def test_links_lead_to_operations_by_their_placeholders() -> None:
    paths = {operation["operationId"]: told.split(" ")[1] for told, operation in operations()}
    links = [
        link
        for _, operation in operations()
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]

    assert {link["operationId"] for link in links} >= {
        "agents.read",
        "sessions.open",
        "messages.create",
        "messages.read",
        "models.read",
        "sessions.fork",
        "agents.sessions.delete",
        "api.sessions.open",
        "api.sessions.prompt",
        "api.repos.remove",
    }
    for link in links:
        wanted = names_in(paths[link["operationId"]])
        assert sorted(link.get("parameters", {})) == sorted(wanted)


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": PLAIN["components"]})
