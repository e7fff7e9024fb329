"""Models over HTTP."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from holdfast.domain.models import model_of
from holdfast.domain.tokens import Scope
from tests.houses import script
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.marks import demands, each_case
from tests.tooled import a_config, says

pytestmark = pytest.mark.anyio

OFFLINE = model_of("offline:holdfast").id


@demands("S2-035")
async def test_the_offline_model_always_exists(visitor: Visitor) -> None:
    listed = (await visitor.get("/v1/models")).document

    offline = next(model for model in listed["data"] if model["name"] == "holdfast")
    assert listed["next_cursor"] is None
    assert offline["id"] == OFFLINE
    assert set(offline) == {
        "id",
        "provider",
        "name",
        "display_name",
        "context_window",
        "max_output",
        "prices",
        "priced",
        "source",
    }
    assert (await visitor.get(f"/v1/models/{OFFLINE}")).document == offline
    assert (await visitor.get("/v1/models/offline:holdfast")).document == offline


async def test_a_model_is_added_with_its_prices(visitor: Visitor) -> None:
    each = {"input": 1, "output": 2, "cache_read": 3, "cache_write": 4}
    prices = each | {"tiers": [{"above": 9} | each]}
    body: dict[str, Any] = {
        "provider": "openai",
        "name": "gpt-next",
        "display_name": "GPT Next",
        "context_window": 1000,
        "max_output": 100,
        "prices": prices,
    }

    made = await visitor.post("/v1/models", body)
    again = await visitor.post("/v1/models", {**body, "display_name": "Next"})

    id_ = model_of("openai:gpt-next").id
    assert made.status == 201
    assert made.headers["location"] == f"/v1/models/{id_}"
    assert made.document == {**body, "id": id_, "priced": True, "source": "manual"}
    assert (again.status, again.document["display_name"]) == (200, "Next")
    assert (await visitor.agent(default_model_id=id_))["default_model_id"] == id_


@each_case(
    "body",
    [
        {"provider": "openai"},
        {"provider": "", "name": "x"},
        {"provider": "openai", "name": "x", "context_window": 0},
        {"provider": "openai", "name": "x", "prices": {"input": -1, "output": 0}},
        {"provider": "openai", "name": "x", "source": "catalogue"},
    ],
)
async def test_a_model_that_is_not_right_is_refused(visitor: Visitor, body: dict[str, Any]) -> None:
    assert refusal(await visitor.post("/v1/models", body)) == (400, "invalid_body")


async def test_the_name_of_a_file_is_for_those_who_may_give_one(
    visitor: Visitor, tmp_path: Path
) -> None:
    model = script(tmp_path, {"text": "hi"})
    agent = await visitor.agent(default_model_id=model)
    id_ = agent["default_model_id"]
    reader, writer, admin = [
        await visitor.as_("local" if scope is Scope.READ else "other", scope)
        for scope in (Scope.READ, Scope.WRITE, Scope.ADMIN)
    ]

    for each in (visitor, admin):
        names = [found["name"] for found in (await each.get("/v1/models")).document["data"]]
        assert model.removeprefix("scripted:") in names
        assert (await each.get(f"/v1/models/{id_}")).document["provider"] == "scripted"
    for each in (reader, writer):
        assert str(tmp_path).encode() not in (await each.get("/v1/models")).body
        hidden = await each.get(f"/v1/models/{id_}")
        assert refusal(hidden) == (404, "model_not_found")
        assert hidden.body == (await each.get(f"/v1/models/{A_STRANGER}")).body


async def test_a_default_that_is_a_file_is_not_named_to_everybody(
    home: Path, outside: Environment
) -> None:
    config = a_config(home, says("hi"))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        told = (await visitor.get("/v1/defaults")).document["model"]
        other = await visitor.as_("other")
        hidden = (await other.get("/v1/defaults")).document["model"]

    assert told == config.default_model
    assert hidden == f"scripted:{model_of(config.default_model).id}"


async def test_an_unknown_model_is_not_found(visitor: Visitor) -> None:
    for ref in (A_STRANGER, "x", "openai:none"):
        assert refusal(await visitor.get(f"/v1/models/{ref}")) == (404, "model_not_found")


async def test_adding_a_model_needs_an_administrator(visitor: Visitor) -> None:
    writer = await visitor.as_("local", Scope.WRITE)

    answer = await writer.post("/v1/models", {"provider": "openai", "name": "x"})

    assert refusal(answer) == (403, "forbidden")
