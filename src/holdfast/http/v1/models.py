"""Routes of models, and of the server's defaults."""

from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.models import model_of
from holdfast.domain.tokens import Scope
from holdfast.domain.tools import CATALOGUE
from holdfast.http.auth import may_see
from holdfast.http.responses import Answer
from holdfast.http.routing import Asked, NoQuery, Route
from holdfast.http.v1.idempotency import TELLS, made
from holdfast.services.models import model_not_found
from holdfast.wire.models import (
    DefaultsForm,
    ModelForm,
    ModelList,
    ModelPost,
    model_form,
    model_request,
)


async def list_models(asked: Asked[NoQuery, None]) -> Answer:
    """List models."""
    found = await asked.house.models.catalogue()
    shown = (model for model in found if may_see(asked.required_caller, model))
    return Answer(content=ModelList(tuple(map(model_form, shown))))


async def read_model(asked: Asked[NoQuery, None]) -> Answer:
    """Return a model."""
    model = await asked.house.models.get(asked.path["model_id"])
    if not may_see(asked.required_caller, model):
        raise model_not_found()
    return Answer(content=model_form(model), has_etag=True)


async def add_model(asked: Asked[NoQuery, ModelPost]) -> Answer:
    """Add a model."""
    new = await asked.house.models.add(model_request(asked.body))
    form = model_form(new.thing)
    return made(form, is_new=new.is_new, location=f"/v1/models/{form.id}")


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/models",
        name="models.list",
        summary="List all models by provider and name.",
        act=list_models,
        needs=Scope.READ,
        gives={200: ModelList},
    ),
    Route(
        method="GET",
        path="/v1/models/{model_id}",
        name="models.read",
        summary="Return a model by id or by `provider:name`.",
        act=read_model,
        needs=Scope.READ,
        gives={200: ModelForm, 304: None},
        tells={200: ("etag",), 304: ("etag",)},
        refuses=(Code.MODEL_NOT_FOUND,),
    ),
    Route(
        method="POST",
        path="/v1/models",
        name="models.add",
        summary="Add a model, or describe a known one anew.",
        act=add_model,
        needs=Scope.ADMIN,
        body=ModelPost,
        gives={201: ModelForm, 200: ModelForm},
        tells=TELLS,
        refuses=(Code.INVALID_INPUT, Code.INVALID_TEXT, Code.MODEL_NOT_FOUND),
        examples={
            "body": {
                "provider": "openai",
                "name": "gpt-next",
                "prices": {"input": 300_000_000, "output": 1_500_000_000},
            }
        },
    ),
)


async def read_defaults(asked: Asked[NoQuery, None]) -> Answer:
    """Return what holds by default."""
    config = asked.house.config
    model = model_of(config.default_model)
    # Who may not know the file's name can still tell that it is one.
    shown = model.ref if may_see(asked.required_caller, model) else f"{model.provider}:{model.id}"
    tools = tuple(sorted(CATALOGUE))
    return Answer(content=DefaultsForm(model=shown, approval=config.approval, tools=tools))


DEFAULTS_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/defaults",
        name="defaults",
        summary="Return what answers, what is asked about at most, and which tools there are.",
        act=read_defaults,
        needs=Scope.READ,
        gives={200: DefaultsForm},
    ),
)
