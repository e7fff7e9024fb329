-- Who may call: tokens by the digests of their secrets, and codes that are exchanged for one.

CREATE TABLE tokens (
    id         TEXT COLLATE "C" PRIMARY KEY,
    owner      TEXT COLLATE "C" NOT NULL,
    kind       TEXT COLLATE "C" NOT NULL,
    digest     BYTEA NOT NULL UNIQUE,
    expires_at BIGINT,
    revoked_at BIGINT,
    body       BYTEA NOT NULL,
    checksum   BIGINT NOT NULL
);

CREATE INDEX tokens_by_owner ON tokens (owner, id);
-- The file beside the store holds one secret, so one of them is good.
CREATE UNIQUE INDEX tokens_local ON tokens (kind) WHERE kind = 'local' AND revoked_at IS NULL;

-- A code is good as long as its row is there: whoever takes the row has used it.
CREATE TABLE sign_in_codes (
    digest     BYTEA PRIMARY KEY,
    expires_at BIGINT NOT NULL,
    body       BYTEA NOT NULL,
    checksum   BIGINT NOT NULL
);
