-- Up to which event a session's log was forgotten for its age: what is missing there is no damage.
CREATE TABLE forgotten (
    session_key BIGINT PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    through     BIGINT NOT NULL,
    checksum    BIGINT NOT NULL
);
