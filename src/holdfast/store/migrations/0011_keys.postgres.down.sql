-- Messages and events move back into tables with the session and the number in two columns.

DROP VIEW "AgentMessage";
DROP VIEW session_messages;
DROP VIEW session_events;
DROP VIEW stored_events;

DROP TRIGGER sessions_take_their_rows_along ON sessions;
DROP FUNCTION remove_rows_of_session();

DROP INDEX sessions_unsettled;
CREATE INDEX sessions_unsettled ON sessions (key) WHERE turn > settled;
CREATE INDEX sessions_held ON sessions (holder) WHERE holder IS NOT NULL;

ALTER TABLE messages RENAME TO messages_after;
ALTER INDEX messages_pkey RENAME TO messages_after_pkey;
DROP INDEX messages_by_id;

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

INSERT INTO messages (session_key, sequence, id, turn, role, model_id, created_at, hash, event, told,
                      parts)
SELECT session_key, sequence, id, turn, role, model_id, created_at, hash, event, event_checksum, parts
  FROM messages_after
 ORDER BY key;

DROP TABLE messages_after;

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

ALTER TABLE events RENAME TO events_after;
ALTER INDEX events_pkey RENAME TO events_after_pkey;

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

INSERT INTO events (session_key, stays, sequence, turn, at, name, ids, payload, checksum)
SELECT session_key, 1, sequence, turn, at, name, ids, payload, checksum
  FROM events_after
 ORDER BY key;

INSERT INTO events (session_key, stays, sequence, turn, at, name, ids, payload, checksum)
SELECT session_key, 0, sequence, turn, at, name, ids, payload, checksum
  FROM deltas
 ORDER BY key;

DROP TABLE events_after;
DROP TABLE deltas;

CREATE INDEX events_deltas ON events (at) WHERE name = 'step.delta';

CREATE VIEW news AS
SELECT session_key, sequence, turn, at, name, ids, payload, checksum FROM events WHERE stays = 0
 UNION ALL
SELECT session_key, sequence, turn, at, name, ids, payload, checksum FROM events WHERE stays = 1;

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

CREATE VIEW session_messages AS
SELECT CAST(CAST(encode(m.id, 'hex') AS UUID) AS TEXT) AS id,
       s.id AS session_id, m.sequence AS sequence_number, m.role,
       convert_from(m.parts, 'UTF8') AS content, m.model_id, m.created_at AS timestamp
  FROM messages m
  JOIN sessions s ON s.key = m.session_key;

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
      JOIN messages m ON m.session_key = l.key AND m.sequence <= l.last
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
                   (SELECT row_to_json(told)
                      FROM (SELECT 'plan' AS type,
                                   coalesce(array_to_json(array_agg(row_to_json(step))), '[]')
                                       AS steps
                              FROM (SELECT p.step ->> 'text' AS content,
                                           coalesce(p.step ->> 'priority', 'medium') AS priority,
                                           p.step ->> 'status' AS status
                                      FROM json_array_elements(parts -> 0 -> 'steps')
                                           WITH ORDINALITY p (step, place)
                                     ORDER BY p.place) step) told)
               WHEN 'compaction' THEN
                   (SELECT row_to_json(told)
                      FROM (SELECT 'text' AS type, parts -> 0 ->> 'summary' AS text,
                                   'compaction' AS code) told)
               ELSE (SELECT json_strip_nulls(row_to_json(told))
                       FROM (SELECT 'text' AS type, coalesce(text, '') AS text,
                                    CASE role WHEN 'assistant' THEN FALSE END AS partial,
                                    parts -> 0 ->> 'code' AS code, media) told)
           END AS content
      FROM words
     WHERE role != 'assistant' OR coalesce(text, '') != '' OR media IS NOT NULL
     UNION ALL
    SELECT c.session_id, c.id, coalesce(r.sequence, c.sequence),
           coalesce(r.created_at, c.created_at), 'system',
           (SELECT row_to_json(told)
              FROM (SELECT 'tool' AS type, c.parts -> 0 ->> 'name' AS tool,
                           c.parts -> 0 -> 'arguments' AS args,
                           CASE WHEN r.parts IS NOT NULL THEN
                               (SELECT row_to_json(outcome)
                                  FROM (SELECT r.parts -> 0 ->> 'status' AS status, r.output,
                                               r.parts -> 0 -> 'error' ->> 'message' AS error
                                       ) outcome)
                           END AS result) told)
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
