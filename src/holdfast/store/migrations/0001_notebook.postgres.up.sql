-- The notebook: who answers, where, and everything that is written down about it.

-- Texts are compared by their bytes, as everybody who pages through them expects. Ids that are
-- mostly UUIDs and may be any text are VARCHAR, which nothing else is.

-- Without case, in every language, as well as the server knows; the collation of a column knows the
-- letters of ASCII only.
DO $$
BEGIN
    EXECUTE format(
        'CREATE FUNCTION folded(given TEXT) RETURNS TEXT LANGUAGE sql IMMUTABLE AS '
        '''SELECT replace(replace(lower(given COLLATE %I), ''''ß'''', ''''ss''''), ''''ς'''', ''''σ'''')''',
        coalesce((SELECT c.collname
                    FROM pg_collation c
                    JOIN unnest(ARRAY['und-x-icu', 'pg_unicode_fast', 'pg_c_utf8'])
                         WITH ORDINALITY known (name, place) ON known.name = c.collname
                   ORDER BY known.place
                   LIMIT 1), 'default'));
END
$$;

-- The numbers of a list as rows.
CREATE FUNCTION listed(numbers TEXT) RETURNS TABLE (value BIGINT) LANGUAGE sql IMMUTABLE AS
$$ SELECT CAST(each AS BIGINT) FROM json_array_elements_text(CAST(numbers AS JSON)) each $$;

-- What bytes say. A NUL is read as U+FFFF, which is no character: no text of Postgres has one, and
-- nothing at all can be looked up in JSON with one in it.
CREATE FUNCTION parsed_json(body BYTEA) RETURNS JSON LANGUAGE sql IMMUTABLE AS $$
SELECT CAST(CASE WHEN strpos(said, '\u0000') = 0 THEN said ELSE
                regexp_replace(said, '(?<!\\)((?:\\\\)*)\\u0000', '\1' || chr(65535), 'g')
            END AS JSON)
  FROM convert_from(body, 'UTF8') said
$$;

-- The same, and nothing where they are damaged.
CREATE FUNCTION read_json(body BYTEA) RETURNS JSON LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN parsed_json(body);
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

CREATE FUNCTION refuse_change() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% are append-only', TG_TABLE_NAME;
END
$$;

CREATE TABLE migrations (
    number     BIGINT PRIMARY KEY,
    name       TEXT COLLATE "C" NOT NULL,
    checksum   TEXT COLLATE "C" NOT NULL,
    applied_at BIGINT NOT NULL
);

-- The last commit of each process: part of it, so that it can be asked for when its answer is lost.
CREATE TABLE writers (
    name   TEXT COLLATE "C" PRIMARY KEY,
    number BIGINT NOT NULL,
    at     TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- An id names an agent for its owner: whoever chooses one learns nothing about others.
CREATE TABLE agents (
    id         TEXT COLLATE "C" NOT NULL,
    owner      TEXT COLLATE "C" NOT NULL,
    slug       TEXT COLLATE "C" NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    status     TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    body       BYTEA NOT NULL,
    checksum   BIGINT NOT NULL,
    PRIMARY KEY (owner, id),
    UNIQUE (owner, slug)
);

CREATE INDEX agents_by_time ON agents (owner, created_at, id);

CREATE TABLE models (
    id       TEXT COLLATE "C" PRIMARY KEY,
    provider TEXT COLLATE "C" NOT NULL,
    name     TEXT COLLATE "C" NOT NULL,
    body     BYTEA NOT NULL,
    checksum BIGINT NOT NULL,
    UNIQUE (provider, name)
);

CREATE TABLE repos (
    id         TEXT COLLATE "C" PRIMARY KEY,
    owner      TEXT COLLATE "C" NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    path       TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    checksum   BIGINT NOT NULL,
    UNIQUE (owner, path)
);

-- Never given twice, whatever became of the session.
CREATE SEQUENCE session_keys AS BIGINT;

-- One small row per session: it changes with every write and hands out the numbers. An id names
-- it for its owner, the key for the house; a key is never given twice, tombstones remember it.
CREATE TABLE sessions (
    key         BIGINT PRIMARY KEY,
    id          TEXT COLLATE "C" NOT NULL,
    owner       TEXT COLLATE "C" NOT NULL,
    agent_id    TEXT COLLATE "C" NOT NULL,
    repo_id     TEXT COLLATE "C" REFERENCES repos (id),
    forked_key  BIGINT REFERENCES sessions (key),
    forked_at   BIGINT,
    title       TEXT COLLATE "C",
    status      TEXT COLLATE "C" NOT NULL,
    last_stop   TEXT COLLATE "C",
    reason      TEXT COLLATE "C",
    turn        BIGINT NOT NULL,
    settled     BIGINT NOT NULL,
    messages    BIGINT NOT NULL,
    events      BIGINT NOT NULL,
    began       BIGINT NOT NULL,
    chain       BYTEA NOT NULL,
    holder      TEXT COLLATE "C",
    until       BIGINT NOT NULL,
    epoch       BIGINT NOT NULL,
    tokens_in   BIGINT NOT NULL,
    tokens_out  BIGINT NOT NULL,
    microcents  BIGINT NOT NULL,
    requests    BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    started_at  BIGINT,
    finished_at BIGINT,
    checksum    BIGINT NOT NULL,
    UNIQUE (owner, id),
    FOREIGN KEY (owner, agent_id) REFERENCES agents (owner, id)
) WITH (fillfactor = 70);

CREATE INDEX sessions_by_time ON sessions (owner, created_at, id);
CREATE INDEX sessions_by_agent ON sessions (agent_id, created_at);
CREATE INDEX sessions_by_repo ON sessions (repo_id) WHERE repo_id IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (forked_key) WHERE forked_key IS NOT NULL;
CREATE INDEX sessions_unsettled ON sessions (key) WHERE turn > settled;
CREATE INDEX sessions_held ON sessions (holder) WHERE holder IS NOT NULL;

-- What was frozen when the session opened, apart from the row that changes all the time.
CREATE TABLE openings (
    session_key BIGINT PRIMARY KEY REFERENCES sessions (key) ON DELETE CASCADE,
    digest      BYTEA NOT NULL,
    body        BYTEA NOT NULL,
    checksum    BIGINT NOT NULL
);

CREATE TABLE tombstones (
    key        BIGINT PRIMARY KEY,
    id         TEXT COLLATE "C" NOT NULL,
    owner      TEXT COLLATE "C" NOT NULL,
    deleted_at BIGINT NOT NULL,
    UNIQUE (owner, id)
);

-- A row is its own news: `event` is the number of the event that tells of it, `told` the checksum
-- of what that event says, so that nothing is written twice. Ids are kept as their 16 bytes, here
-- and wherever there are many rows; one that is no UUID as it is. What may be long comes last: the
-- next row is proven by the hash, and has to be where pages are damaged that hold the end of this.
CREATE TABLE messages (
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    sequence    BIGINT NOT NULL,
    id          BYTEA NOT NULL,
    turn        BIGINT NOT NULL,
    role        TEXT COLLATE "C" NOT NULL,
    model_id    VARCHAR COLLATE "C",
    created_at  BIGINT NOT NULL,
    hash        BYTEA NOT NULL,
    event       BIGINT NOT NULL,
    told        BIGINT NOT NULL,
    parts       BYTEA NOT NULL,
    PRIMARY KEY (session_key, sequence)
);

-- The id first: ids sort by time, so the newest of all sessions share a page and a commit is small.
CREATE UNIQUE INDEX messages_by_id ON messages (id, session_key);

CREATE TRIGGER messages_are_never_edited
BEFORE UPDATE ON messages
FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- Rows go only together with their session, whose row is gone first.
CREATE FUNCTION refuse_lone_removal() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM sessions WHERE key = OLD.session_key) THEN
        RAISE EXCEPTION '% are append-only', TG_TABLE_NAME;
    END IF;
    RETURN OLD;
END
$$;

CREATE TRIGGER messages_are_never_removed_one_by_one
BEFORE DELETE ON messages
FOR EACH ROW EXECUTE FUNCTION refuse_lone_removal();

CREATE TRIGGER messages_are_never_truncated
BEFORE TRUNCATE ON messages
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- News that are pruned stand apart from those that stay, so that they leave whole pages and no
-- holes. What an event says begins with its name and perhaps the ids of a message and a model;
-- `payload` is what follows, and the checksum is of all of it.
CREATE TABLE events (
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    stays       BIGINT NOT NULL,
    sequence    BIGINT NOT NULL,
    turn        BIGINT,
    at          BIGINT NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    ids         BYTEA,
    payload     BYTEA NOT NULL,
    checksum    BIGINT NOT NULL,
    PRIMARY KEY (session_key, stays, sequence)
);

CREATE INDEX events_deltas ON events (at) WHERE name = 'step.delta';

-- Both kinds in one order.
CREATE VIEW news AS
SELECT session_key, sequence, turn, at, name, ids, payload, checksum FROM events WHERE stays = 0
 UNION ALL
SELECT session_key, sequence, turn, at, name, ids, payload, checksum FROM events WHERE stays = 1;

CREATE TABLE calls (
    session_key     BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    id              TEXT COLLATE "C" NOT NULL,
    turn            BIGINT NOT NULL,
    sequence        BIGINT NOT NULL,
    name            TEXT COLLATE "C" NOT NULL,
    arguments       BYTEA NOT NULL,
    state           TEXT COLLATE "C" NOT NULL,
    effect          TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C" NOT NULL,
    settlement      TEXT COLLATE "C",
    result_sequence BIGINT,
    started_at      BIGINT,
    ended_at        BIGINT,
    checksum        BIGINT NOT NULL,
    PRIMARY KEY (session_key, id)
);

CREATE INDEX calls_by_turn ON calls (session_key, turn, sequence);
CREATE INDEX calls_unknown ON calls (session_key) WHERE state = 'unknown';

CREATE TABLE costs (
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    turn        BIGINT NOT NULL,
    request_id  VARCHAR COLLATE "C" NOT NULL,
    model_id    VARCHAR COLLATE "C" NOT NULL,
    input       BIGINT NOT NULL,
    output      BIGINT NOT NULL,
    cache_read  BIGINT NOT NULL,
    cache_write BIGINT NOT NULL,
    reasoning   BIGINT NOT NULL,
    microcents  BIGINT NOT NULL,
    priced      BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    checksum    BIGINT NOT NULL,
    PRIMARY KEY (session_key, turn, request_id)
);

-- The whole log of every session: what is stored as news, and the rows that are their own.
CREATE VIEW session_events AS
SELECT s.id AS session_id, e.sequence, e.turn, e.at, e.name,
       '{"type":"' || e.name || '"'
       || CASE WHEN e.ids IS NULL THEN '' ELSE
              ',"message_id":"' || CAST(encode(substr(e.ids, 1, 16), 'hex') AS UUID) || '"' END
       || CASE length(e.ids) WHEN 32 THEN
              ',"model_id":"' || CAST(encode(substr(e.ids, 17), 'hex') AS UUID) || '"' ELSE '' END
       || convert_from(e.payload, 'UTF8') AS payload
  FROM events e
  JOIN sessions s ON s.key = e.session_key
 UNION ALL
SELECT s.id, m.event, nullif(m.turn, 0), m.created_at, 'message.appended',
       '{"type":"message.appended","message_id":"' || CAST(encode(m.id, 'hex') AS UUID)
       || '","role":"' || m.role || '","sequence":' || m.sequence || '}'
  FROM messages m
  JOIN sessions s ON s.key = m.session_key
 WHERE m.event > 0;

-- The names that readers of the store may know from elsewhere; read-only, because of the WITH:
-- what is written to a plainer view is written to its table.
CREATE VIEW agent_sessions AS
WITH shown AS (
    SELECT id, owner, agent_id, repo_id, title, status, tokens_in AS total_input_tokens,
           tokens_out AS total_output_tokens, microcents AS total_cost_microcents,
           created_at, updated_at
      FROM sessions
)
SELECT * FROM shown;

CREATE VIEW session_messages AS
SELECT CAST(CAST(encode(m.id, 'hex') AS UUID) AS TEXT) AS id,
       s.id AS session_id, m.sequence AS sequence_number, m.role,
       convert_from(m.parts, 'UTF8') AS content, m.model_id, m.created_at AS timestamp
  FROM messages m
  JOIN sessions s ON s.key = m.session_key;
