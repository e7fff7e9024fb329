-- Programs that somebody else wrote: how the one of a session stands, and what it said of itself.

CREATE TABLE programs (
    session_key BIGINT PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    state       TEXT COLLATE "C" NOT NULL,
    body        BYTEA NOT NULL,
    checksum    BIGINT NOT NULL
);

-- Few rows at any time: whoever starts looks here for what was left running.
CREATE INDEX programs_alive ON programs (session_key)
 WHERE state IN ('starting', 'ready', 'busy');
