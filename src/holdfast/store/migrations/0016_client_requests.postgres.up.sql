-- Requests to clients to run a call, and the digest of the first answer to each.

CREATE TABLE client_requests (
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    call_id     TEXT COLLATE "C" NOT NULL,
    body        BYTEA NOT NULL,
    checksum    BIGINT NOT NULL,
    PRIMARY KEY (session_key, call_id)
);

CREATE INDEX calls_requested ON calls (session_key) WHERE state = 'requested';
