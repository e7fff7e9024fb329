-- Which session was opened by which other one, and by which of its calls if it was one.

CREATE TABLE children (
    session_key BIGINT PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    parent_key  BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    call_id     TEXT COLLATE "C",
    body        BYTEA NOT NULL,
    checksum    BIGINT NOT NULL
);

CREATE INDEX children_of ON children (parent_key, session_key);
