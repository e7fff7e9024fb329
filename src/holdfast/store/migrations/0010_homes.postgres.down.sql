-- One local token remains, the newest. A home whose token is removed here registers the secret of
-- its file again when its server starts.

DELETE FROM tokens
 WHERE kind = 'local'
   AND revoked_at IS NULL
   AND id < (SELECT max(id) FROM tokens WHERE kind = 'local' AND revoked_at IS NULL);

DROP INDEX tokens_local;
ALTER TABLE tokens DROP COLUMN home;
CREATE UNIQUE INDEX tokens_local ON tokens (kind) WHERE kind = 'local' AND revoked_at IS NULL;
