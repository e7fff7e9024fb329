"""JSON forms of models, and of the server's defaults."""

from typing import Annotated

from msgspec import Meta, Struct, convert

from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.ids import ModelId
from holdfast.domain.models import Model, ModelRequest, ModelSource, Prices
from holdfast.domain.sessions import ATTENDED_TURN_CAP
from holdfast.wire.scalars import Uuid

Price = Annotated[int, Meta(ge=0, le=10**12)]
Tokens = Annotated[int, Meta(ge=1, le=10**9)]
Part = Annotated[str, Meta(min_length=1, max_length=255)]


class PriceTierForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prices of requests with more than `above` input tokens, for all their tokens."""

    above: Tokens
    input: Price
    output: Price
    cache_read: Price = 0
    cache_write: Price = 0


class PricesForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prices in micro-cents per million tokens of each class (1 USD = 100,000,000 micro-cents)."""

    input: Price
    output: Price
    cache_read: Price = 0
    cache_write: Price = 0
    tiers: Annotated[tuple[PriceTierForm, ...], Meta(max_length=8)] = ()


class ModelForm(Struct, frozen=True, kw_only=True):
    """A language model."""

    id: Uuid
    provider: str
    name: str
    display_name: str | None
    context_window: int | None
    max_output: int | None
    prices: PricesForm | None
    priced: bool
    source: ModelSource


class ModelList(Struct, frozen=True):
    """All models."""

    data: tuple[ModelForm, ...]
    next_cursor: str | None = None


class ModelPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model description that replaces the catalogue's."""

    provider: Part
    name: Part
    display_name: Part | None = None
    context_window: Tokens | None = None
    max_output: Tokens | None = None
    prices: PricesForm | None = None


def model_form(model: Model) -> ModelForm:
    """Return the form of a model."""
    return ModelForm(
        id=model.id,
        provider=model.provider,
        name=model.name,
        display_name=model.display_name,
        context_window=model.context_window,
        max_output=model.max_output,
        prices=None
        if model.prices is None
        else convert(model.prices, PricesForm, from_attributes=True),
        priced=model.prices is not None,
        source=model.source,
    )


def model_request(body: ModelPost) -> ModelRequest:
    """Return the model that a body describes."""
    return ModelRequest(
        provider=body.provider,
        name=body.name,
        display_name=body.display_name,
        context_window=body.context_window,
        max_output=body.max_output,
        prices=None if body.prices is None else convert(body.prices, Prices, from_attributes=True),
    )


class DefaultsForm(Struct, frozen=True, kw_only=True):
    """The default model and approval mode, and the tools available to agents."""

    model: str
    approval: ApprovalMode
    tools: tuple[str, ...] = ()
    attended_turn_cap: Annotated[
        int, Meta(description="The turn cap for sessions that a person opens.")
    ] = ATTENDED_TURN_CAP


def model_post(request: ModelRequest) -> ModelPost:
    """Return the body that adds a model."""
    return ModelPost(
        provider=request.provider,
        name=request.name,
        display_name=request.display_name,
        context_window=request.context_window,
        max_output=request.max_output,
        prices=None
        if request.prices is None
        else convert(request.prices, PricesForm, from_attributes=True),
    )


def model_value(form: ModelForm) -> Model:
    """Return the model of a form."""
    return Model(
        id=ModelId(form.id),
        provider=form.provider,
        name=form.name,
        context_window=form.context_window,
        prices=None if form.prices is None else convert(form.prices, Prices, from_attributes=True),
        display_name=form.display_name,
        max_output=form.max_output,
        source=form.source,
    )
