"""Models: which there are, and which ones a session's turn may ask, in which order."""

import asyncio
from typing import Protocol

from holdfast.domain.agents import LlmRuntime
from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import ModelId, is_uuid
from holdfast.domain.models import Model, model_of
from holdfast.domain.sessions import Session
from holdfast.ports import Store, Tx


class KnownModels(Protocol):
    """Who knows models by name; it may read files and large tables, so not on the event loop."""

    def check(self, model: Model) -> None:
        """Refuse a model that cannot be asked."""

    def describe(self, model: Model) -> Model:
        """Return the model with its prices and its window, where they are known."""


class Models:
    """The catalogue."""

    def __init__(self, store: Store, default: str, known: KnownModels) -> None:
        """`default` answers where nothing else is named; `known` tells what can be asked."""
        self._store = store
        self._default = model_of(default)
        self._known = known
        self._described: dict[ModelId, Model] = {}

    async def list(self) -> list[Model]:
        """Return every model the store knows, by provider and name."""
        return await self._store.read(lambda tx: tx.models.all())

    async def check(self, *refs: str) -> None:
        """Refuse models that cannot be asked; a script is read here, so not in a transaction."""
        for ref in refs:
            if not is_uuid(ref):
                await asyncio.to_thread(self._known.check, model_of(ref))

    async def resolve(self, tx: Tx, ref: str) -> ModelId:
        """Return the id of a model given by id, or by `provider:name`, which adds a new one."""
        if is_uuid(ref):
            known = await tx.models.by_id(ModelId(ref))
            if known is None:
                raise NotFound(
                    Code.MODEL_NOT_FOUND, "There is no model of that id; write provider:name."
                )
            return known.id
        model = model_of(ref)
        await tx.models.add(model)
        return model.id

    async def chain(self, tx: Tx, session: Session) -> tuple[Model, ...]:
        """Return the models of a turn: the session's own first, then the agent's, each once."""
        runtime = session.agent.runtime
        own = [session.model_id] if session.model_id else []
        entries = runtime.models if isinstance(runtime, LlmRuntime) else ()
        # Each once: a model that was tried is not tried again under another number.
        wanted = dict.fromkeys([*own, *(entry.model_id for entry in entries)])
        found = [await tx.models.by_id(model_id) for model_id in wanted]
        models = [model for model in found if model is not None] or [self._default]
        return tuple(map(self._today, models))

    def _today(self, model: Model) -> Model:
        """Return the model with what is known of it today: a stored price would grow old."""
        # Inside a transaction, and so in a thread of the store: the tables may be read here.
        if model.id not in self._described:
            self._described[model.id] = self._known.describe(model)
        return self._described[model.id]
