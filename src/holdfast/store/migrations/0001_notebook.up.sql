-- The notebook: who answers, where, and everything that is written down about it.

CREATE TABLE migrations (
    number     INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

-- An id names an agent for its owner: whoever chooses one learns nothing about others.
CREATE TABLE agents (
    id         TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    slug       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    checksum   INTEGER NOT NULL,
    PRIMARY KEY (owner, id),
    UNIQUE (owner, slug)
) STRICT;

CREATE INDEX agents_by_time ON agents (owner, created_at, id);

CREATE TABLE models (
    id       TEXT    PRIMARY KEY,
    provider TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    body     BLOB    NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (provider, name)
) STRICT;

CREATE TABLE repos (
    id         TEXT    PRIMARY KEY,
    owner      TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    path       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    checksum   INTEGER NOT NULL,
    UNIQUE (owner, path)
) STRICT;

-- One small row per session: it changes with every write and hands out the numbers. An id names
-- it for its owner, the key for the house; a key is never given twice, tombstones remember it.
CREATE TABLE sessions (
    key         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL,
    owner       TEXT    NOT NULL,
    agent_id    TEXT    NOT NULL,
    repo_id     TEXT    REFERENCES repos (id),
    forked_key  INTEGER REFERENCES sessions (key),
    forked_at   INTEGER,
    title       TEXT,
    status      TEXT    NOT NULL,
    last_stop   TEXT,
    reason      TEXT,
    turn        INTEGER NOT NULL,
    settled     INTEGER NOT NULL,
    messages    INTEGER NOT NULL,
    events      INTEGER NOT NULL,
    began       INTEGER NOT NULL,
    chain       BLOB    NOT NULL,
    holder      TEXT,
    until       INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    tokens_in   INTEGER NOT NULL,
    tokens_out  INTEGER NOT NULL,
    microcents  INTEGER NOT NULL,
    requests    INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER,
    checksum    INTEGER NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, agent_id) REFERENCES agents (owner, id)
) STRICT;

CREATE INDEX sessions_by_time ON sessions (owner, created_at, id);
CREATE INDEX sessions_by_agent ON sessions (agent_id, created_at);
CREATE INDEX sessions_by_repo ON sessions (repo_id) WHERE repo_id IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (forked_key) WHERE forked_key IS NOT NULL;
CREATE INDEX sessions_unsettled ON sessions (key) WHERE turn > settled;
CREATE INDEX sessions_held ON sessions (holder) WHERE holder IS NOT NULL;

-- What was frozen when the session opened, apart from the row that changes all the time.
CREATE TABLE openings (
    session_key INTEGER PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    digest      BLOB    NOT NULL,
    body        BLOB    NOT NULL,
    checksum    INTEGER NOT NULL
) STRICT;

CREATE TABLE tombstones (
    key        INTEGER PRIMARY KEY,
    id         TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    deleted_at INTEGER NOT NULL,
    UNIQUE (owner, id)
) STRICT;

-- A row is its own news: `event` is the number of the event that tells of it, `told` the checksum
-- of what that event says, so that nothing is written twice. Ids are kept as their 16 bytes, here
-- and wherever there are many rows; one that is no UUID as it is. What may be long comes last: the
-- next row is proven by the hash, and has to be where pages are damaged that hold the end of this.
CREATE TABLE messages (
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    sequence    INTEGER NOT NULL,
    id          BLOB    NOT NULL,
    turn        INTEGER NOT NULL,
    role        TEXT    NOT NULL,
    model_id    ANY,
    created_at  INTEGER NOT NULL,
    hash        BLOB    NOT NULL,
    event       INTEGER NOT NULL,
    told        INTEGER NOT NULL,
    parts       BLOB    NOT NULL,
    PRIMARY KEY (session_key, sequence)
) STRICT, WITHOUT ROWID;

-- The id first: ids sort by time, so the newest of all sessions share a page and a commit is small.
CREATE UNIQUE INDEX messages_by_id ON messages (id, session_key);

CREATE TRIGGER messages_are_never_edited
BEFORE UPDATE ON messages
BEGIN
    SELECT RAISE(ABORT, 'messages are append-only');
END;

-- Rows go only together with their session, whose row is gone first.
CREATE TRIGGER messages_are_never_removed_one_by_one
BEFORE DELETE ON messages
WHEN EXISTS (SELECT 1 FROM sessions WHERE key = OLD.session_key)
BEGIN
    SELECT RAISE(ABORT, 'messages are append-only');
END;

-- News that are pruned stand apart from those that stay, so that they leave whole pages and no
-- holes. What an event says begins with its name and perhaps the ids of a message and a model;
-- `payload` is what follows, and the checksum is of all of it.
CREATE TABLE events (
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    stays       INTEGER NOT NULL,
    sequence    INTEGER NOT NULL,
    turn        INTEGER,
    at          INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    ids         BLOB,
    payload     BLOB    NOT NULL,
    checksum    INTEGER NOT NULL,
    PRIMARY KEY (session_key, stays, sequence)
) STRICT, WITHOUT ROWID;

CREATE INDEX events_deltas ON events (at) WHERE name = 'step.delta';

-- Both kinds in one order: SQLite merges them as it reads.
CREATE VIEW news AS
SELECT session_key, sequence, turn, at, name, ids, payload, checksum FROM events WHERE stays = 0
 UNION ALL
SELECT session_key, sequence, turn, at, name, ids, payload, checksum FROM events WHERE stays = 1;

CREATE TABLE calls (
    session_key     INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    id              TEXT    NOT NULL,
    turn            INTEGER NOT NULL,
    sequence        INTEGER NOT NULL,
    name            TEXT    NOT NULL,
    arguments       BLOB    NOT NULL,
    state           TEXT    NOT NULL,
    effect          TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    settlement      TEXT,
    result_sequence INTEGER,
    started_at      INTEGER,
    ended_at        INTEGER,
    checksum        INTEGER NOT NULL,
    PRIMARY KEY (session_key, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX calls_by_turn ON calls (session_key, turn, sequence);
CREATE INDEX calls_unknown ON calls (session_key) WHERE state = 'unknown';

CREATE TABLE costs (
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    turn        INTEGER NOT NULL,
    request_id  ANY     NOT NULL,
    model_id    ANY     NOT NULL,
    input       INTEGER NOT NULL,
    output      INTEGER NOT NULL,
    cache_read  INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    reasoning   INTEGER NOT NULL,
    microcents  INTEGER NOT NULL,
    priced      INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    checksum    INTEGER NOT NULL,
    PRIMARY KEY (session_key, turn, request_id)
) STRICT, WITHOUT ROWID;

-- The whole log of every session: what is stored as news, and the rows that are their own.
CREATE VIEW session_events AS
SELECT s.id AS session_id, e.sequence, e.turn, e.at, e.name,
       '{"type":"' || e.name || '"'
       || CASE WHEN e.ids IS NULL THEN '' ELSE ',"message_id":"' || lower(printf(
              '%.8s-%.4s-%.4s-%.4s-%.12s"', hex(e.ids), substr(hex(e.ids), 9),
              substr(hex(e.ids), 13), substr(hex(e.ids), 17), substr(hex(e.ids), 21))) END
       || CASE length(e.ids) WHEN 32 THEN ',"model_id":"' || lower(printf(
              '%.8s-%.4s-%.4s-%.4s-%.12s"', substr(hex(e.ids), 33), substr(hex(e.ids), 41),
              substr(hex(e.ids), 45), substr(hex(e.ids), 49), substr(hex(e.ids), 53))) ELSE '' END
       || CAST(e.payload AS TEXT) AS payload
  FROM events e
  JOIN sessions s ON s.key = e.session_key
 UNION ALL
SELECT s.id, m.event, nullif(m.turn, 0), m.created_at, 'message.appended',
       json_object('type', 'message.appended', 'message_id', lower(printf(
                       '%.8s-%.4s-%.4s-%.4s-%s', hex(m.id), substr(hex(m.id), 9),
                       substr(hex(m.id), 13), substr(hex(m.id), 17), substr(hex(m.id), 21))),
                   'role', m.role, 'sequence', m.sequence)
  FROM messages m
  JOIN sessions s ON s.key = m.session_key
 WHERE m.event > 0;

-- The names that readers of the store may know from elsewhere; read-only by nature.
CREATE VIEW agent_sessions AS
SELECT id, owner, agent_id, repo_id, title, status, tokens_in AS total_input_tokens,
       tokens_out AS total_output_tokens, microcents AS total_cost_microcents,
       created_at, updated_at
  FROM sessions;

CREATE VIEW session_messages AS
SELECT lower(printf('%.8s-%.4s-%.4s-%.4s-%s', hex(m.id), substr(hex(m.id), 9),
                    substr(hex(m.id), 13), substr(hex(m.id), 17), substr(hex(m.id), 21))) AS id,
       s.id AS session_id, m.sequence AS sequence_number, m.role,
       CAST(m.parts AS TEXT) AS content,
       CASE typeof(m.model_id) WHEN 'blob' THEN lower(printf(
           '%.8s-%.4s-%.4s-%.4s-%s', hex(m.model_id), substr(hex(m.model_id), 9),
           substr(hex(m.model_id), 13), substr(hex(m.model_id), 17), substr(hex(m.model_id), 21)))
           ELSE m.model_id END AS model_id,
       m.created_at AS timestamp
  FROM messages m
  JOIN sessions s ON s.key = m.session_key;
