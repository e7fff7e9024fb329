-- What tools need: questions that wait for an answer, and contents too large for a row.

CREATE TABLE approvals (
    id          TEXT COLLATE "C" PRIMARY KEY,
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    call_id     TEXT COLLATE "C",
    digest      TEXT COLLATE "C" NOT NULL,
    state       TEXT COLLATE "C" NOT NULL,
    memory      TEXT COLLATE "C",
    body        BYTEA NOT NULL,
    checksum    BIGINT NOT NULL
);

CREATE INDEX approvals_by_session ON approvals (session_key, id);
CREATE INDEX approvals_by_question ON approvals (session_key, digest);
CREATE INDEX approvals_waiting ON approvals (session_key) WHERE state = 'waiting';
-- Filled only for answers that hold for their whole session.
CREATE INDEX approvals_remembered ON approvals (session_key, memory) WHERE memory IS NOT NULL;

-- Contents by their hash: one copy, however many sessions hold it.
CREATE TABLE media (
    hash    BYTEA PRIMARY KEY,
    content BYTEA NOT NULL
);

CREATE TABLE media_uses (
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    hash        BYTEA NOT NULL REFERENCES media (hash),
    mime_type   TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (session_key, hash)
);

CREATE INDEX media_uses_by_hash ON media_uses (hash);

-- The last session that held a content takes it along.
CREATE FUNCTION take_unused_media() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM media m
     WHERE m.hash = OLD.hash
       AND NOT EXISTS (SELECT 1 FROM media_uses u WHERE u.hash = OLD.hash);
    RETURN NULL;
END
$$;

CREATE TRIGGER media_go_with_their_last_use
AFTER DELETE ON media_uses
FOR EACH ROW EXECUTE FUNCTION take_unused_media();
