-- What the paused turn of a session waits for; a row counts only while its session is paused.

CREATE TABLE waits (
    session_key BIGINT PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    reason      TEXT COLLATE "C" NOT NULL,
    body        BYTEA NOT NULL,
    checksum    BIGINT NOT NULL
);

CREATE INDEX waits_by_reason ON waits (reason, session_key);
