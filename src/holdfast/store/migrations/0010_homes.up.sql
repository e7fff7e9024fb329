-- A database can serve several homes, and each has a local token of its own. An empty name is a
-- store with a single home, or a token made before homes were recorded.

ALTER TABLE tokens ADD COLUMN home TEXT NOT NULL DEFAULT '';

DROP INDEX tokens_local;
CREATE UNIQUE INDEX tokens_local ON tokens (home) WHERE kind = 'local' AND revoked_at IS NULL;
