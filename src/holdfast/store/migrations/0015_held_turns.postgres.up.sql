-- Turns that a program holds with a loop of its own; a row counts only while its turn is open.

CREATE TABLE held_turns (
    session_key BIGINT PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    turn        BIGINT NOT NULL,
    body        BYTEA NOT NULL,
    checksum    BIGINT NOT NULL
);
