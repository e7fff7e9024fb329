-- Sessions that a framework runs, by the id it gives them, and the records it wrote, in order.
-- `state` is what the framework keeps about a session, and `changed` a time of its own for it.

CREATE TABLE foreign_sessions (
    session_key INTEGER PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    owner       TEXT NOT NULL,
    framework   TEXT NOT NULL,
    native_id   TEXT NOT NULL,
    state       BLOB,
    changed     INTEGER NOT NULL DEFAULT 0,
    UNIQUE (owner, framework, native_id)
) STRICT;

CREATE TABLE foreign_records (
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    stream      TEXT NOT NULL,
    ordinal     INTEGER NOT NULL,
    key         TEXT NOT NULL,
    kind        TEXT NOT NULL,
    raw         BLOB NOT NULL,
    disposition TEXT NOT NULL,
    message_id  TEXT,
    checksum    INTEGER NOT NULL,
    PRIMARY KEY (session_key, stream, ordinal)
) STRICT, WITHOUT ROWID;

CREATE INDEX foreign_sessions_by_change ON foreign_sessions (owner, framework, changed);
CREATE INDEX foreign_records_by_key ON foreign_records (session_key, stream, key);
