"""Routes of models, of what they have cost in whole micro-cents, and of the defaults."""

from typing import Final

from holdfast.domain.costs import CostQuery
from holdfast.domain.errors import Code
from holdfast.domain.ids import AgentId, SessionId
from holdfast.domain.models import model_of
from holdfast.domain.tokens import Scope
from holdfast.domain.tools import CATALOGUE
from holdfast.http.auth import can_see_model
from holdfast.http.responses import Response
from holdfast.http.routing import NoQuery, RouteRequest, Routes, cacheable
from holdfast.http.v1.idempotency import created_response, creates
from holdfast.services.models import model_not_found
from holdfast.wire.costs import CostList, CostsQuery, costs_form
from holdfast.wire.errors import as_query_errors
from holdfast.wire.models import (
    DefaultsForm,
    ModelForm,
    ModelList,
    ModelPost,
    model_form,
    model_request,
)

routes: Final = Routes()
cost_routes: Final = Routes()
defaults_routes: Final = Routes()


@routes.get("/v1/models", "models.list", ModelList)
async def list_models(request: RouteRequest[NoQuery, None]) -> Response:
    """List all models by provider and name."""
    found = await request.holdfast.models.catalogue()
    shown = (model for model in found if can_see_model(request.required_caller, model))
    return Response(content=ModelList(tuple(map(model_form, shown))))


@routes.get("/v1/models/{model_id}", "models.read", **cacheable(ModelForm))
async def read_model(request: RouteRequest[NoQuery, None]) -> Response:
    """Return a model by id or by `provider:name`."""
    model = await request.holdfast.models.get(request.path["model_id"])
    if not can_see_model(request.required_caller, model):
        raise model_not_found()
    return Response(content=model_form(model), has_etag=True)


@routes.post(
    "/v1/models",
    "models.add",
    **creates(ModelForm),
    needs=Scope.ADMIN,
    errors=(Code.INVALID_INPUT, Code.MODEL_NOT_FOUND),
    example={
        "provider": "openai",
        "name": "gpt-next",
        "prices": {"input": 300000000, "output": 1500000000},
    },
)
async def add_model(request: RouteRequest[NoQuery, ModelPost]) -> Response:
    """Add a model, or replace the description of a known one."""
    new = await request.holdfast.models.make(model_request(request.body))
    form = model_form(new.value)
    return created_response(form, is_new=new.is_new, location=f"/v1/models/{form.id}")


@defaults_routes.get("/v1/defaults", "defaults", DefaultsForm)
async def read_defaults(request: RouteRequest[NoQuery, None]) -> Response:
    """Return the default model, the default approval mode and the available tools."""
    config = request.holdfast.config
    model = model_of(config.default_model)
    # Callers that may not see the file name only see that it is a file.
    shown = (
        model.ref
        if can_see_model(request.required_caller, model)
        else f"{model.provider}:{model.id}"
    )
    tools = tuple(sorted(CATALOGUE))
    return Response(
        content=DefaultsForm(
            model=shown,
            approval=config.approval,
            tools=tools,
            attended_turn_cap=config.attended_turn_cap,
        )
    )


@cost_routes.get("/v1/costs", "costs", CostList)
async def list_costs(request: RouteRequest[CostsQuery, None]) -> Response:
    """Return the costs by model, agent, session or day (UTC)."""
    query = request.query
    wanted = CostQuery(
        owner=request.owner,
        group_by=query.group_by,
        session_id=SessionId(query.session_id.lower()) if query.session_id else None,
        agent_id=AgentId(query.agent_id.lower()) if query.agent_id else None,
        since=query.since,
        until=query.until,
    )
    with as_query_errors():
        report = await request.holdfast.costs.report(wanted)
    return Response(content=costs_form(report))
