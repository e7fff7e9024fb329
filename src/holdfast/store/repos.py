"""The `repos` table."""

from holdfast.domain.ids import Owner, RepoId, is_uuid
from holdfast.domain.repos import Repo
from holdfast.domain.time import instant, microseconds
from holdfast.store.database import Database, Row, checksum, encode, require_sound

ADD = """
-- Insert a repository.
INSERT INTO repos (id, owner, name, path, created_at, checksum)
VALUES (:id, :owner, :name, :path, :created_at, :checksum)
"""

BY_ID = """
-- One repository of an owner.
SELECT id, owner, name, path, created_at, checksum
  FROM repos
 WHERE id = :id
   AND owner = :owner
"""

BY_PATH = """
-- The repository registered at a path.
SELECT id, owner, name, path, created_at, checksum
  FROM repos
 WHERE path = :path
   AND owner = :owner
"""

ALL = """
-- An owner's repositories.
SELECT id, owner, name, path, created_at, checksum
  FROM repos
 WHERE owner = :owner
 ORDER BY name, id
"""

IS_USED = """
-- Whether a repository has sessions.
SELECT 1
  FROM sessions
 WHERE repo_id = :id
 LIMIT 1
"""

REMOVE = """
-- Delete a repository; its files stay.
DELETE FROM repos
 WHERE id = :id
"""


class RepoRows:
    """Repositories in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, repo: Repo) -> None:
        columns = {
            "id": repo.id,
            "owner": repo.owner,
            "name": repo.name,
            "path": repo.path,
            "created_at": microseconds(repo.created_at),
        }
        columns["checksum"] = checksum(encode(list(columns.values())))
        await self._db.execute(ADD, columns)

    async def by_id(self, owner: Owner, repo_id: RepoId) -> Repo | None:
        if not is_uuid(repo_id):
            return None
        rows = await self._db.fetch(BY_ID, {"id": repo_id, "owner": owner})
        return _repo(rows[0]) if rows else None

    async def by_path(self, owner: Owner, path: str) -> Repo | None:
        rows = await self._db.fetch(BY_PATH, {"path": path, "owner": owner})
        return _repo(rows[0]) if rows else None

    async def all(self, owner: Owner) -> list[Repo]:
        return [_repo(row) for row in await self._db.fetch(ALL, {"owner": owner})]

    async def is_used(self, repo_id: RepoId) -> bool:
        return bool(await self._db.fetch(IS_USED, {"id": repo_id}))

    async def remove(self, repo_id: RepoId) -> None:
        await self._db.execute(REMOVE, {"id": repo_id})


def _repo(row: Row) -> Repo:
    repo_id, owner, name, path, created_at, stored = row
    require_sound(stored, encode(row[:5]), what=f"repository {repo_id}")
    return Repo(id=repo_id, owner=owner, name=name, path=path, created_at=instant(created_at))
