"""Models: which there are, and what they cost."""

from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer
from holdfast.http.callers import may_see
from holdfast.http.table import Asked, NoQuery, Route
from holdfast.http.v1.models_forms import (
    ModelForm,
    ModelList,
    ModelPost,
    model_form,
    model_request,
)
from holdfast.http.v1.repeats import TELLS, made
from holdfast.services.models import model_not_found


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
