-- Turns that a program holds with a loop of its own; a row counts only while its turn is open.

CREATE TABLE held_turns (
    session_key INTEGER PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    turn        INTEGER NOT NULL,
    body        BLOB    NOT NULL,
    checksum    INTEGER NOT NULL
) STRICT;
