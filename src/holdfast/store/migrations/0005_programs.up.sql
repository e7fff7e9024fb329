-- Programs that somebody else wrote: how the one of a session stands, and what it said of itself.

CREATE TABLE programs (
    session_key INTEGER PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    state       TEXT    NOT NULL,
    body        BLOB    NOT NULL,
    checksum    INTEGER NOT NULL
) STRICT;

-- Few rows at any time: whoever starts looks here for what was left running.
CREATE INDEX programs_alive ON programs (session_key)
 WHERE state IN ('starting', 'ready', 'busy');
