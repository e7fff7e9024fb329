"""Language models: who they are and what they cost. Calling one is the business of `llm/`."""

from typing import Final
from uuid import NAMESPACE_DNS, UUID, uuid5

from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import ModelId
from holdfast.domain.texts import is_encodable

# Fixed for ever: an id made of it is the same on every installation.
_NAMESPACE: Final[UUID] = uuid5(NAMESPACE_DNS, "holdfast.models")

OFFLINE: Final = "offline:holdfast"


class Prices(Struct, frozen=True, kw_only=True):
    """Micro-cents for a million tokens of each class (1 USD = 100,000,000 micro-cents)."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0


class Model(Struct, frozen=True, kw_only=True):
    """A model by provider and name; without prices it may be used, and its cost is unknown."""

    id: ModelId
    provider: str
    name: str
    context_window: int | None = None
    prices: Prices | None = None

    @property
    def ref(self) -> str:
        """Return `provider:name`, the form people write."""
        return f"{self.provider}:{self.name}"


def model_of(ref: str) -> Model:
    """Return the model that `provider:name` names; its id is the same on every installation."""
    provider, _, name = ref.partition(":")
    if not (provider.strip() and name.strip() and is_encodable(ref)) or "\x00" in ref:
        raise Invalid(
            Code.MODEL_NOT_FOUND,
            f"A model is written provider:name, for example {OFFLINE}.",
            {"field": "model"},
        )
    return Model(id=ModelId(str(uuid5(_NAMESPACE, ref))), provider=provider, name=name)
