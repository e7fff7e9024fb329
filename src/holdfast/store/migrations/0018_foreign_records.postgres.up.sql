-- Sessions that a framework runs, by the id it gives them, and the records it wrote, in order.
-- `state` is what the framework keeps about a session, and `changed` a time of its own for it.

CREATE TABLE foreign_sessions (
    session_key BIGINT PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    owner       TEXT COLLATE "C" NOT NULL,
    framework   TEXT COLLATE "C" NOT NULL,
    native_id   TEXT COLLATE "C" NOT NULL,
    state       BYTEA,
    changed     BIGINT NOT NULL DEFAULT 0,
    UNIQUE (owner, framework, native_id)
);

CREATE TABLE foreign_records (
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    stream      TEXT COLLATE "C" NOT NULL,
    ordinal     BIGINT NOT NULL,
    key         TEXT COLLATE "C" NOT NULL,
    kind        TEXT COLLATE "C" NOT NULL,
    raw         BYTEA NOT NULL,
    disposition TEXT COLLATE "C" NOT NULL,
    message_id  TEXT COLLATE "C",
    checksum    BIGINT NOT NULL,
    PRIMARY KEY (session_key, stream, ordinal)
);

CREATE INDEX foreign_sessions_by_change ON foreign_sessions (owner, framework, changed);
CREATE INDEX foreign_records_by_key ON foreign_records (session_key, stream, key);
