-- Observed history: claims about entities, and what is computed from them for quick answers.

-- Something that claims are about. A session of ours with the same owner and id is the same thing:
-- then its journal is told with the claims, and `session_key` leads to it. What stands behind the
-- times is computed from the claims; with each value, its weight and where its claim stands in time.
CREATE TABLE entities (
    key               INTEGER PRIMARY KEY,
    id                TEXT    NOT NULL,
    owner             TEXT    NOT NULL,
    entity_type       TEXT    NOT NULL,
    name              TEXT    NOT NULL,
    session_key       INTEGER REFERENCES sessions (key) ON DELETE SET NULL,
    observations      INTEGER NOT NULL,
    first_ms          INTEGER NOT NULL,
    last_ms           INTEGER NOT NULL,
    known_ms          INTEGER NOT NULL,
    is_deleted        INTEGER NOT NULL,
    started_ms        INTEGER,
    started_priority  INTEGER,
    ended_ms          INTEGER,
    ended_priority    INTEGER,
    ended_place       INTEGER,
    duration          REAL,
    duration_priority INTEGER,
    duration_place    INTEGER,
    checksum          INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX entities_by_name ON entities (owner, name, entity_type);
CREATE UNIQUE INDEX entities_by_id ON entities (id);
CREATE UNIQUE INDEX entities_by_session ON entities (session_key) WHERE session_key IS NOT NULL;
CREATE INDEX entities_hosted ON entities (owner) WHERE session_key IS NOT NULL;
CREATE INDEX entities_by_start ON entities (owner, entity_type, started_ms, id)
 WHERE is_deleted = 0 AND session_key IS NULL;

-- The other way round a new entity looks for its session itself.
CREATE TRIGGER sessions_are_entities
AFTER INSERT ON sessions
BEGIN
    UPDATE entities
       SET session_key = NEW.key
     WHERE owner = NEW.owner
       AND name = NEW.id
       AND entity_type = 'agent_session';
END;

-- A claim as it was made; its id follows from its entity, its number and its content. What may be
-- long comes last: the rest is read without it.
CREATE TABLE observations (
    entity_key      INTEGER NOT NULL REFERENCES entities (key),
    ordinal         INTEGER NOT NULL,
    owner           TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    source          TEXT    NOT NULL,
    observed_ms     INTEGER NOT NULL,
    created_ms      INTEGER NOT NULL,
    idempotency_key TEXT,
    content_hash    BLOB    NOT NULL,
    checksum        INTEGER NOT NULL,
    content         BLOB    NOT NULL,
    PRIMARY KEY (entity_key, ordinal)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX observations_by_idempotency_key ON observations (owner, idempotency_key)
 WHERE idempotency_key IS NOT NULL;

CREATE TRIGGER observations_are_never_edited
BEFORE UPDATE ON observations
BEGIN
    SELECT RAISE(ABORT, 'observations are append-only');
END;

CREATE TRIGGER observations_are_never_removed
BEFORE DELETE ON observations
BEGIN
    SELECT RAISE(ABORT, 'observations are append-only');
END;

-- To replace a row is to insert it, and fires no other trigger.
CREATE TRIGGER observations_are_never_replaced
BEFORE INSERT ON observations
WHEN EXISTS (SELECT 1
               FROM observations
              WHERE entity_key = NEW.entity_key
                AND ordinal = NEW.ordinal)
  OR EXISTS (SELECT 1
               FROM observations
              WHERE owner = NEW.owner
                AND idempotency_key = NEW.idempotency_key)
BEGIN
    SELECT RAISE(ABORT, 'observations are append-only');
END;

-- From here on everything is computed from the claims, and can be computed again.
CREATE TABLE snapshots (
    entity_key INTEGER PRIMARY KEY REFERENCES entities (key),
    checksum   INTEGER NOT NULL,
    body       BLOB    NOT NULL
) STRICT;

CREATE TABLE timeline (
    entity_key INTEGER NOT NULL REFERENCES entities (key),
    ms         INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    id         BLOB    NOT NULL,
    type       INTEGER NOT NULL,
    checksum   INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    PRIMARY KEY (entity_key, ms, rank, id)
) STRICT, WITHOUT ROWID;

-- Ids that entities name, such as those of outcomes; nothing of such an id has to be there.
CREATE TABLE names (
    key   INTEGER PRIMARY KEY,
    owner TEXT    NOT NULL,
    name  TEXT    NOT NULL
) STRICT;

CREATE UNIQUE INDEX names_by_name ON names (owner, name);

-- Who names an id. One that names many ids and has many events is wide: its events stand under none
-- of them, and are looked up with it.
CREATE TABLE mentions (
    name_key   INTEGER NOT NULL REFERENCES names (key),
    entity_key INTEGER NOT NULL REFERENCES entities (key),
    is_wide    INTEGER NOT NULL,
    PRIMARY KEY (name_key, entity_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX mentions_by_entity ON mentions (entity_key);
CREATE INDEX mentions_wide ON mentions (name_key) WHERE is_wide = 1;

-- The events of all who name an id, in their order.
CREATE TABLE mentioned_timeline (
    name_key   INTEGER NOT NULL REFERENCES names (key),
    ms         INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    id         BLOB    NOT NULL,
    type       INTEGER NOT NULL,
    entity_key INTEGER NOT NULL REFERENCES entities (key),
    PRIMARY KEY (name_key, ms, rank, id)
) STRICT, WITHOUT ROWID;
