-- What the paused turn of a session waits for; a row counts only while its session is paused.

CREATE TABLE waits (
    session_key INTEGER PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    reason      TEXT    NOT NULL,
    body        BLOB    NOT NULL,
    checksum    INTEGER NOT NULL
) STRICT;

CREATE INDEX waits_by_reason ON waits (reason, session_key);
