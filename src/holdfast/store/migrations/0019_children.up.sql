-- Which session was opened by which other one, and by which of its calls if it was one.

CREATE TABLE children (
    session_key INTEGER PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    parent_key  INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    call_id     TEXT,
    body        BLOB    NOT NULL,
    checksum    INTEGER NOT NULL
) STRICT;

CREATE INDEX children_of ON children (parent_key, session_key);
