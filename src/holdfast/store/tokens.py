"""The tables `tokens` and `sign_in_codes`; rows are found by digest, secrets are not stored."""

from datetime import datetime

import msgspec

from holdfast.domain.ids import Owner, TokenId, is_uuid
from holdfast.domain.time import microseconds
from holdfast.domain.tokens import SignInCode, Token
from holdfast.store.database import (
    Database,
    Row,
    checksum,
    encode,
    reading_of,
    require_sound,
    sound,
    with_row_lock,
)

ADD = """
-- Insert a token.
INSERT INTO tokens (id, owner, kind, home, digest, expires_at, revoked_at, body, checksum)
VALUES (:id, :owner, :kind, :home, :digest, :expires_at, :revoked_at, :body, :checksum)
"""

SAVE = """
-- Update a token that was used, revoked, or claimed by a home.
UPDATE tokens
   SET home = :home, revoked_at = :revoked_at, body = :body, checksum = :checksum
 WHERE id = :id
"""

BY_DIGEST = """
-- The token with the hash of a secret.
SELECT id, body, checksum
  FROM tokens
 WHERE digest = :digest
"""

BY_ID = """
-- One token of an owner.
SELECT id, body, checksum
  FROM tokens
 WHERE id = :id
   AND owner = :owner
"""

LOCAL = """
-- Valid local tokens, one per home, oldest first.
SELECT id, body, checksum
  FROM tokens
 WHERE kind = 'local'
   AND revoked_at IS NULL
 ORDER BY id
"""

OF_OWNER = """
-- An owner's tokens, oldest first.
SELECT id, body, checksum
  FROM tokens
 WHERE owner = :owner
 ORDER BY id
"""

ALL = """
-- Tokens of all owners, oldest first.
SELECT id, body, checksum
  FROM tokens
 ORDER BY id
"""

FORGET = """
-- Delete expired tokens of the page.
DELETE FROM tokens
 WHERE kind = 'page'
   AND expires_at < :before
"""

ADD_CODE = """
-- Insert the code of a sign-in link.
INSERT INTO sign_in_codes (digest, expires_at, body, checksum)
VALUES (:digest, :expires_at, :body, :checksum)
"""

TAKE_CODE = """
-- Use up a code; of two concurrent requests one gets it.
DELETE FROM sign_in_codes
 WHERE digest = :digest
RETURNING body, checksum
"""

FORGET_CODES = """
-- Delete expired codes.
DELETE FROM sign_in_codes
 WHERE expires_at < :before
"""

# Created at import because msgspec prepares a type on first use, which is not thread-safe.
_tokens = msgspec.json.Decoder(Token)
_codes = msgspec.json.Decoder(SignInCode)


class TokenRows:
    """Tokens and sign-in codes in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, token: Token, digest: bytes) -> None:
        expires_at = microseconds(token.expires_at) if token.expires_at else None
        fixed = {"owner": token.owner, "kind": token.kind.value, "digest": digest}
        await self._db.execute(ADD, {**_changing(token), **fixed, "expires_at": expires_at})

    async def save(self, token: Token) -> None:
        await self._db.execute(SAVE, _changing(token))

    async def by_digest(self, digest: bytes) -> Token | None:
        rows = await self._db.fetch(with_row_lock(self._db, BY_DIGEST), {"digest": digest})
        return _token(rows[0]) if rows else None

    async def by_id(self, owner: Owner, token_id: TokenId) -> Token | None:
        if not is_uuid(token_id):
            return None
        rows = await self._db.fetch(
            with_row_lock(self._db, BY_ID), {"id": token_id, "owner": owner}
        )
        return _token(rows[0]) if rows else None

    async def local(self) -> list[Token]:
        return [_token(row) for row in await self._db.fetch(with_row_lock(self._db, LOCAL))]

    async def of_owner(self, owner: Owner) -> list[Token]:
        return list(sound(await self._db.fetch(OF_OWNER, {"owner": owner}), _token))

    async def all(self) -> list[Token]:
        return list(sound(await self._db.fetch(ALL), _token))

    async def forget(self, before: datetime) -> None:
        await self._db.execute(FORGET, {"before": microseconds(before)})

    async def add_code(self, code: SignInCode, digest: bytes) -> None:
        body = encode(code)
        columns = {"digest": digest, "expires_at": microseconds(code.expires_at)}
        await self._db.execute(ADD_CODE, {**columns, "body": body, "checksum": checksum(body)})

    async def take_code(self, digest: bytes) -> SignInCode | None:
        rows = await self._db.fetch(TAKE_CODE, {"digest": digest})
        return _code(rows[0]) if rows else None

    async def forget_codes(self, before: datetime) -> None:
        await self._db.execute(FORGET_CODES, {"before": microseconds(before)})


def _changing(token: Token) -> dict[str, object]:
    body = encode(token)
    return {
        "id": token.id,
        "home": token.home,
        "revoked_at": microseconds(token.revoked_at) if token.revoked_at else None,
        "body": body,
        "checksum": checksum(body),
    }


def _token(row: Row) -> Token:
    token_id, body, stored = row
    require_sound(stored, body, what=f"token {token_id}")
    with reading_of(f"token {token_id}"):
        return _tokens.decode(body)


def _code(row: Row) -> SignInCode:
    body, stored = row
    require_sound(stored, body, what="a sign-in code")
    with reading_of("a sign-in code"):
        return _codes.decode(body)
