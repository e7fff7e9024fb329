-- Who may call: tokens by the digests of their secrets, and codes that are exchanged for one.

CREATE TABLE tokens (
    id         TEXT    PRIMARY KEY,
    owner      TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    digest     BLOB    NOT NULL UNIQUE,
    expires_at INTEGER,
    revoked_at INTEGER,
    body       BLOB    NOT NULL,
    checksum   INTEGER NOT NULL
) STRICT;

CREATE INDEX tokens_by_owner ON tokens (owner, id);
-- The file beside the store holds one secret, so one of them is good.
CREATE UNIQUE INDEX tokens_local ON tokens (kind) WHERE kind = 'local' AND revoked_at IS NULL;

-- A code is good as long as its row is there: whoever takes the row has used it.
CREATE TABLE sign_in_codes (
    digest     BLOB    PRIMARY KEY,
    expires_at INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    checksum   INTEGER NOT NULL
) STRICT;
