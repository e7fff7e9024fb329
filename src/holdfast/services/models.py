"""Models: the catalogue, and the ordered list of models for a session's turn."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from holdfast.domain.agents import AcpRuntime, Agent, ExternalRuntime, LlmRuntime, LoopRuntime
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.ids import ModelId, is_uuid
from holdfast.domain.models import (
    OFFLINE,
    Model,
    ModelRequest,
    ModelSource,
    describe_model,
    model_of,
)
from holdfast.domain.sessions import Created, Session
from holdfast.ports.store import Store, Tx

# Stands for the provider in the name of a model that a runtime chooses itself.
_KINDS: Final = {AcpRuntime: "acp", LoopRuntime: "loop", ExternalRuntime: "external"}


def models_beyond_llm(agent: Agent) -> tuple[Model, ...]:
    """Return what rows and costs name as the model of an agent that chooses its model itself."""
    runtime = agent.runtime
    if isinstance(runtime, LlmRuntime):
        return ()
    return (model_of(f"{_KINDS[type(runtime)]}:{agent.slug}"),)


class ModelCatalogue(Protocol):
    """Describes models by name; may read files and large tables, so not on the event loop."""

    def check(self, model: Model) -> None:
        """Refuse a model that cannot be used."""

    def describe(self, model: Model) -> Model:
        """Return the model with its prices, limits and media, where they are known."""


class Models:
    """The catalogue of models."""

    def __init__(
        self,
        store: Store,
        default: str,
        known: ModelCatalogue,
        *,
        absolute: Callable[[str], str] = str,
    ) -> None:
        """`default` is used if no model is named; `known` describes and checks models.

        `absolute` resolves a name that is a file path, so that it does not depend on the working
        directory.
        """
        self._store = store
        self._absolute = absolute
        self._default = model_of(absolute(default))
        self._known = known
        self._described: dict[ModelId, tuple[Model, Model]] = {}
        self._is_default_kept = False
        # When a description was last changed here, by the monotonic clock.
        self.changed_at = -math.inf
        self._named: dict[str, Model] = {}

    async def list(self) -> list[Model]:
        """Return every stored model, by provider and name."""
        return await self._store.read(lambda tx: tx.models.all())

    async def catalogue(self) -> tuple[Model, ...]:
        """Return every model that can be referenced by id, with current prices."""

        async def read(tx: Tx) -> tuple[Model, ...]:
            own = {model.id: model for model in (model_of(OFFLINE), self._default)}
            stored = {model.id: model for model in await tx.models.all()}
            return tuple(self._with_source(model) for model in (own | stored).values())

        found = await self._store.read(read)
        return tuple(sorted(found, key=lambda model: (model.provider, model.name)))

    async def get(self, ref: str) -> Model:
        """Return a model of the catalogue, given by id or by `provider:name`."""
        found = [model for model in await self.catalogue() if ref in {model.id, model.ref}]
        if not found:
            raise model_not_found()
        return found[0]

    async def add(self, request: ModelRequest) -> Model:
        """Add a model with a manual description, or replace the description of a known one.

        A manual description overrides the catalogue, for every owner.
        """
        return (await self.make(request)).value

    async def make(self, request: ModelRequest) -> Created[Model]:
        """Add a model; `is_new` is false if it had a manual description before."""
        model = describe_model(request)
        await asyncio.to_thread(self._known.check, model)

        async def work(tx: Tx) -> bool:
            known = await tx.models.by_id(model.id)
            await tx.models.save(model)
            return known is None or known.source is not ModelSource.MANUAL

        is_new = await self._store.write(work)
        self.changed_at = time.monotonic()
        return Created(value=await self.get(model.id), is_new=is_new)

    async def check(self, *refs: str) -> None:
        """Refuse unusable models; may read a script file, so not inside a transaction."""
        for ref in refs:
            if not is_uuid(ref):
                await asyncio.to_thread(self._known.check, model_of(self._absolute(ref)))

    async def resolve(self, tx: Tx, ref: str) -> ModelId:
        """Return the id of a model given by id or by `provider:name`; the latter adds a new one."""
        if is_uuid(ref):
            ours = {model.id: model for model in (model_of(OFFLINE), self._default)}
            known = await tx.models.by_id(ModelId(ref)) or ours.get(ModelId(ref))
            if known is None:
                raise Invalid(
                    Code.MODEL_NOT_FOUND,
                    "There is no model with that id; write it as provider:name.",
                )
            await tx.models.add(known)
            return known.id
        model = model_of(self._absolute(ref))
        await tx.models.add(model)
        return model.id

    async def find_or_add(self, tx: Tx, ref: str) -> Model:
        """Return a model given by id or by `provider:name`, with current prices."""
        model_id = await self.resolve(tx, ref)
        return self._with_current_prices(await tx.models.by_id(model_id) or model_of(ref))

    async def named(self, ref: str) -> Model:
        """Return a model as `find_or_add` does; written once, and then remembered."""
        if ref not in self._named:
            self._named[ref] = await self._store.write(lambda tx: self.find_or_add(tx, ref))
        return self._named[ref]

    async def chain(self, tx: Tx, session: Session) -> tuple[Model, ...]:
        """Return the models of a turn: the session's own first, then the agent's, each once."""
        runtime = session.agent.runtime
        if not isinstance(runtime, LlmRuntime):
            return models_beyond_llm(session.agent)
        own = [session.model_id] if session.model_id else []
        entries = runtime.models
        # Deduplicated, so that a failed model is not tried again in another position.
        wanted = dict.fromkeys([*own, *(entry.model_id for entry in entries)])
        found = [await tx.models.by_id(model_id) for model_id in wanted]
        models = [model for model in found if model is not None] or [self._default]
        return tuple(map(self._with_current_prices, models))

    async def keep(self, asked: tuple[Model, ...]) -> None:
        """Store the default model when it is used, because the configured default may change.

        Rows refer to models by id, so the name would otherwise exist only in the configuration.
        """
        default = self._default
        if self._is_default_kept or default.id not in [model.id for model in asked]:
            return
        if await self._store.read(lambda tx: tx.models.by_id(default.id)) is None:
            await self._store.write(lambda tx: tx.models.add(default))
        self._is_default_kept = True

    def _with_current_prices(self, model: Model) -> Model:
        """Return the model with current data, because stored prices would become outdated."""
        # Runs inside a transaction, and so in a thread of the store: reading tables may block.
        kept = self._described.get(model.id)
        if kept is None or kept[0] != model:
            today = self._known.describe(model)
            # A manual description overrides the tables.
            shown = replace(
                today,
                prices=model.prices or today.prices,
                context_window=model.context_window or today.context_window,
                max_output=model.max_output or today.max_output,
            )
            kept = self._described[model.id] = (model, shown)
        return kept[1]

    def _with_source(self, model: Model) -> Model:
        today = self._with_current_prices(model)
        is_ours = model.id == self._default.id and model.source is ModelSource.CATALOGUE
        return replace(today, source=ModelSource.CONFIG) if is_ours else today


def model_not_found() -> NotFound:
    """Return the error for a model that does not exist or is not visible to the caller."""
    return NotFound(Code.MODEL_NOT_FOUND, "There is no such model.")
