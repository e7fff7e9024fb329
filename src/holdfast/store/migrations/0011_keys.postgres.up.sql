-- Messages and events get one integer key, the session above the number, as in the other database.

DROP VIEW "AgentMessage";
DROP VIEW session_messages;
DROP VIEW session_events;
DROP VIEW news;

DROP INDEX sessions_unsettled;
DROP INDEX sessions_held;
CREATE INDEX sessions_unsettled ON sessions (key) WHERE turn > settled OR holder IS NOT NULL;

ALTER TABLE messages RENAME TO messages_before;
ALTER INDEX messages_pkey RENAME TO messages_before_pkey;
DROP INDEX messages_by_id;

-- `event` is the number of the event that announces the message, `event_checksum` protects it.
CREATE TABLE messages (
    key            BIGINT PRIMARY KEY,
    id             BYTEA NOT NULL,
    turn           BIGINT NOT NULL,
    role           TEXT COLLATE "C" NOT NULL,
    model_id       VARCHAR COLLATE "C",
    created_at     BIGINT NOT NULL,
    hash           BYTEA NOT NULL,
    event          BIGINT NOT NULL,
    event_checksum BIGINT NOT NULL,
    parts          BYTEA NOT NULL,
    session_key    BIGINT NOT NULL GENERATED ALWAYS AS (key >> 32) STORED,
    sequence       BIGINT NOT NULL GENERATED ALWAYS AS (key & 4294967295) STORED
);

INSERT INTO messages (key, id, turn, role, model_id, created_at, hash, event, event_checksum, parts)
SELECT session_key << 32 | sequence, id, turn, role, model_id, created_at, hash, event, told, parts
  FROM messages_before
 ORDER BY session_key, sequence;

DROP TABLE messages_before;

CREATE UNIQUE INDEX messages_by_id ON messages (id, session_key);

CREATE TRIGGER messages_are_never_edited
BEFORE UPDATE ON messages
FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TRIGGER messages_are_never_removed_one_by_one
BEFORE DELETE ON messages
FOR EACH ROW EXECUTE FUNCTION refuse_lone_removal();

CREATE TRIGGER messages_are_never_truncated
BEFORE TRUNCATE ON messages
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER messages_are_searched
AFTER INSERT ON messages
FOR EACH ROW WHEN (NEW.event > 0) EXECUTE FUNCTION note_message();

ALTER TABLE events RENAME TO events_before;
ALTER INDEX events_pkey RENAME TO events_before_pkey;
DROP INDEX events_deltas;

CREATE TABLE events (
    key         BIGINT PRIMARY KEY,
    turn        BIGINT,
    at          BIGINT NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    ids         BYTEA,
    payload     BYTEA NOT NULL,
    checksum    BIGINT NOT NULL,
    session_key BIGINT NOT NULL GENERATED ALWAYS AS (key >> 32) STORED,
    sequence    BIGINT NOT NULL GENERATED ALWAYS AS (key & 4294967295) STORED
);

-- Deltas are pruned; in a table of their own they leave whole pages and no holes.
CREATE TABLE deltas (
    key         BIGINT PRIMARY KEY,
    turn        BIGINT,
    at          BIGINT NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    ids         BYTEA,
    payload     BYTEA NOT NULL,
    checksum    BIGINT NOT NULL,
    session_key BIGINT NOT NULL GENERATED ALWAYS AS (key >> 32) STORED,
    sequence    BIGINT NOT NULL GENERATED ALWAYS AS (key & 4294967295) STORED
);

INSERT INTO events (key, turn, at, name, ids, payload, checksum)
SELECT session_key << 32 | sequence, turn, at, name, ids, payload, checksum
  FROM events_before
 WHERE stays = 1
 ORDER BY session_key, sequence;

INSERT INTO deltas (key, turn, at, name, ids, payload, checksum)
SELECT session_key << 32 | sequence, turn, at, name, ids, payload, checksum
  FROM events_before
 WHERE stays = 0
 ORDER BY session_key, sequence;

DROP TABLE events_before;

CREATE INDEX deltas_by_time ON deltas (at);

-- Both in one order.
CREATE VIEW stored_events AS
SELECT key, session_key, sequence, turn, at, name, ids, payload, checksum FROM deltas
 UNION ALL
SELECT key, session_key, sequence, turn, at, name, ids, payload, checksum FROM events;

-- A foreign key would search for the rows of a session without an index.
CREATE FUNCTION remove_rows_of_session() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM messages WHERE key BETWEEN OLD.key << 32 AND OLD.key << 32 | 4294967295;
    DELETE FROM events WHERE key BETWEEN OLD.key << 32 AND OLD.key << 32 | 4294967295;
    DELETE FROM deltas WHERE key BETWEEN OLD.key << 32 AND OLD.key << 32 | 4294967295;
    RETURN NULL;
END
$$;

CREATE TRIGGER sessions_take_their_rows_along
AFTER DELETE ON sessions
FOR EACH ROW EXECUTE FUNCTION remove_rows_of_session();

CREATE VIEW session_events AS
SELECT s.id AS session_id, e.sequence, e.turn, e.at, e.name,
       '{"type":"' || e.name || '"'
       || CASE WHEN e.ids IS NULL THEN '' ELSE
              ',"message_id":"' || CAST(encode(substr(e.ids, 1, 16), 'hex') AS UUID) || '"' END
       || CASE length(e.ids) WHEN 32 THEN
              ',"model_id":"' || CAST(encode(substr(e.ids, 17), 'hex') AS UUID) || '"' ELSE '' END
       || convert_from(e.payload, 'UTF8') AS payload
  FROM sessions s
  JOIN events e ON e.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
 UNION ALL
SELECT s.id, e.sequence, e.turn, e.at, e.name,
       '{"type":"' || e.name || '"'
       || CASE WHEN e.ids IS NULL THEN '' ELSE
              ',"message_id":"' || CAST(encode(substr(e.ids, 1, 16), 'hex') AS UUID) || '"' END
       || CASE length(e.ids) WHEN 32 THEN
              ',"model_id":"' || CAST(encode(substr(e.ids, 17), 'hex') AS UUID) || '"' ELSE '' END
       || convert_from(e.payload, 'UTF8')
  FROM sessions s
  JOIN deltas e ON e.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
 UNION ALL
SELECT s.id, m.event, nullif(m.turn, 0), m.created_at, 'message.appended',
       '{"type":"message.appended","message_id":"' || CAST(encode(m.id, 'hex') AS UUID)
       || '","role":"' || m.role || '","sequence":' || m.sequence || '}'
  FROM sessions s
  JOIN messages m ON m.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
 WHERE m.event > 0;

CREATE VIEW session_messages AS
SELECT CAST(CAST(encode(m.id, 'hex') AS UUID) AS TEXT) AS id,
       s.id AS session_id, m.sequence AS sequence_number, m.role,
       convert_from(m.parts, 'UTF8') AS content, m.model_id, m.created_at AS timestamp
  FROM sessions s
  JOIN messages m ON m.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295;

CREATE VIEW "AgentMessage" AS
WITH RECURSIVE line (session_key, session_id, key, last) AS (
    SELECT key, id, key, messages
      FROM sessions
     WHERE repo_id IS NOT NULL
     UNION ALL
    SELECT l.session_key, l.session_id, s.forked_key, least(l.last, s.forked_at)
      FROM line l
      JOIN sessions s ON s.key = l.key
     WHERE s.forked_key IS NOT NULL
),
rows AS (
    SELECT l.session_key, l.session_id, m.sequence, m.role, m.created_at,
           CAST(CAST(encode(m.id, 'hex') AS UUID) AS TEXT) AS id,
           parsed_json(m.parts) AS parts
      FROM line l
      JOIN messages m ON m.key BETWEEN l.key << 32 AND l.key << 32 | l.last
),
results AS MATERIALIZED (
    SELECT DISTINCT ON (session_key, parts -> 0 ->> 'call_id')
           session_key, parts -> 0 ->> 'call_id' AS call_id, sequence, created_at, parts,
           parts -> 0 -> 'result' AS output
      FROM rows
     WHERE role = 'tool_result'
     ORDER BY session_key, parts -> 0 ->> 'call_id', sequence
),
words AS (
    SELECT r.*,
           (SELECT string_agg(CASE p.part ->> 'code' WHEN 'error' THEN 'Turn failed: ' ELSE '' END
                              || (p.part ->> 'text'), '' ORDER BY p.place)
              FROM json_array_elements(r.parts) WITH ORDINALITY p (part, place)
             WHERE p.part ->> 'type' IN ('text', 'notice')) AS text,
           (SELECT array_to_json(array_agg(p.part ->> 'ref' ORDER BY p.place))
              FROM json_array_elements(r.parts) WITH ORDINALITY p (part, place)
             WHERE p.part ->> 'type' = 'media') AS media
      FROM rows r
     WHERE r.role IN ('user', 'assistant', 'system')
),
shown AS (
    SELECT session_id, id, sequence, created_at,
           CASE role WHEN 'assistant' THEN 'agent' ELSE role END AS role,
           CASE parts -> 0 ->> 'type'
               WHEN 'plan' THEN
                   (SELECT row_to_json(item)
                      FROM (SELECT 'plan' AS type,
                                   coalesce(array_to_json(array_agg(row_to_json(step))), '[]')
                                       AS steps
                              FROM (SELECT p.step ->> 'text' AS content,
                                           coalesce(p.step ->> 'priority', 'medium') AS priority,
                                           p.step ->> 'status' AS status
                                      FROM json_array_elements(parts -> 0 -> 'steps')
                                           WITH ORDINALITY p (step, place)
                                     ORDER BY p.place) step) item)
               WHEN 'compaction' THEN
                   (SELECT row_to_json(item)
                      FROM (SELECT 'text' AS type, parts -> 0 ->> 'summary' AS text,
                                   'compaction' AS code) item)
               ELSE (SELECT json_strip_nulls(row_to_json(item))
                       FROM (SELECT 'text' AS type, coalesce(text, '') AS text,
                                    CASE role WHEN 'assistant' THEN FALSE END AS partial,
                                    parts -> 0 ->> 'code' AS code, media) item)
           END AS content
      FROM words
     WHERE role != 'assistant' OR coalesce(text, '') != '' OR media IS NOT NULL
     UNION ALL
    SELECT c.session_id, c.id, coalesce(r.sequence, c.sequence),
           coalesce(r.created_at, c.created_at), 'system',
           (SELECT row_to_json(item)
              FROM (SELECT 'tool' AS type, c.parts -> 0 ->> 'name' AS tool,
                           c.parts -> 0 -> 'arguments' AS args,
                           CASE WHEN r.parts IS NOT NULL THEN
                               (SELECT row_to_json(outcome)
                                  FROM (SELECT r.parts -> 0 ->> 'status' AS status, r.output,
                                               r.parts -> 0 -> 'error' ->> 'message' AS error
                                       ) outcome)
                           END AS result) item)
      FROM rows c
      LEFT JOIN results r ON r.session_key = c.session_key
                         AND r.call_id = c.parts -> 0 ->> 'id'
     WHERE c.role = 'tool_call'
)
SELECT id,
       session_id AS "sessionId",
       role,
       replace(CAST(content AS TEXT), chr(65535), '\u0000') AS content,
       spelled_time(created_at) AS timestamp
  FROM shown
 ORDER BY session_id, sequence;
