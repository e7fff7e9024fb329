"""The `models` table."""

import msgspec

from holdfast.domain.ids import ModelId
from holdfast.domain.models import Model
from holdfast.store.database import (
    Database,
    Row,
    checksum,
    encode,
    reading_of,
    require_sound,
    sound,
)

ADD = """
-- Insert a model, unless it is known.
INSERT INTO models (id, provider, name, body, checksum)
VALUES (:id, :provider, :name, :body, :checksum)
ON CONFLICT DO NOTHING
"""

SAVE = """
-- Insert or replace a model that a user described.
INSERT INTO models (id, provider, name, body, checksum)
VALUES (:id, :provider, :name, :body, :checksum)
ON CONFLICT (id) DO UPDATE SET body = excluded.body, checksum = excluded.checksum
"""

BY_ID = """
-- One model.
SELECT id, body, checksum
  FROM models
 WHERE id = :id
"""

ALL = """
-- Every model.
SELECT id, body, checksum
  FROM models
 ORDER BY provider, name
"""

_decoder = msgspec.json.Decoder(Model)


class ModelRows:
    """Models in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, model: Model) -> None:
        await self._db.execute(ADD, _columns(model))

    async def save(self, model: Model) -> None:
        await self._db.execute(SAVE, _columns(model))

    async def by_id(self, model_id: ModelId) -> Model | None:
        rows = await self._db.fetch(BY_ID, {"id": model_id})
        return _model(rows[0]) if rows else None

    async def all(self) -> list[Model]:
        return list(sound(await self._db.fetch(ALL), _model))


def _columns(model: Model) -> dict[str, object]:
    body = encode(model)
    return {
        "id": model.id,
        "provider": model.provider,
        "name": model.name,
        "body": body,
        "checksum": checksum(body),
    }


def _model(row: Row) -> Model:
    model_id, body, stored = row
    require_sound(stored, body, what=f"model {model_id}")
    with reading_of(f"model {model_id}"):
        return _decoder.decode(body)
