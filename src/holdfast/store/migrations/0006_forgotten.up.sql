-- Up to which event a session's log was forgotten for its age: what is missing there is no damage.
CREATE TABLE forgotten (
    session_key INTEGER PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    through     INTEGER NOT NULL,
    checksum    INTEGER NOT NULL
) STRICT;
