-- What tools need: questions that wait for an answer, and contents too large for a row.

CREATE TABLE approvals (
    id          TEXT    PRIMARY KEY,
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    call_id     TEXT,
    digest      TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    memory      TEXT,
    body        BLOB    NOT NULL,
    checksum    INTEGER NOT NULL
) STRICT;

CREATE INDEX approvals_by_session ON approvals (session_key, id);
CREATE INDEX approvals_by_question ON approvals (session_key, digest);
CREATE INDEX approvals_waiting ON approvals (session_key) WHERE state = 'waiting';
-- Filled only for answers that hold for their whole session.
CREATE INDEX approvals_remembered ON approvals (session_key, memory) WHERE memory IS NOT NULL;

-- Contents by their hash: one copy, however many sessions hold it.
CREATE TABLE media (
    hash    BLOB    PRIMARY KEY,
    content BLOB    NOT NULL
) STRICT;

CREATE TABLE media_uses (
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    hash        BLOB    NOT NULL REFERENCES media (hash),
    mime_type   TEXT    NOT NULL,
    PRIMARY KEY (session_key, hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX media_uses_by_hash ON media_uses (hash);

-- The last session that held a content takes it along.
CREATE TRIGGER media_go_with_their_last_use
AFTER DELETE ON media_uses
WHEN NOT EXISTS (SELECT 1 FROM media_uses WHERE hash = OLD.hash)
BEGIN
    DELETE FROM media WHERE hash = OLD.hash;
END;
