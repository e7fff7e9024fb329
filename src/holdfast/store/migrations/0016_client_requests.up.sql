-- Requests to clients to run a call, and the digest of the first answer to each.

CREATE TABLE client_requests (
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    call_id     TEXT    NOT NULL,
    body        BLOB    NOT NULL,
    checksum    INTEGER NOT NULL,
    PRIMARY KEY (session_key, call_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX calls_requested ON calls (session_key) WHERE state = 'requested';
