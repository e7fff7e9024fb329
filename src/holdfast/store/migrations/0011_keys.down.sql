-- Messages and events move back into tables that are sorted by session and number.

DROP VIEW "AgentMessage";
DROP VIEW session_messages;
DROP VIEW session_events;
DROP VIEW stored_events;

DROP TRIGGER sessions_take_their_rows_along;

DROP INDEX sessions_unsettled;
CREATE INDEX sessions_unsettled ON sessions (key) WHERE turn > settled;
CREATE INDEX sessions_held ON sessions (holder) WHERE holder IS NOT NULL;

ALTER TABLE messages RENAME TO messages_after;
DROP INDEX messages_by_id;
DROP TRIGGER messages_are_never_edited;
DROP TRIGGER messages_are_never_removed_one_by_one;
DROP TRIGGER messages_are_searched;

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

INSERT INTO messages (session_key, sequence, id, turn, role, model_id, created_at, hash, event, told,
                      parts)
SELECT session_key, sequence, id, turn, role, model_id, created_at, hash, event, event_checksum, parts
  FROM messages_after
 ORDER BY key;

DROP TABLE messages_after;

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

CREATE TRIGGER messages_are_searched
AFTER INSERT ON messages
WHEN NEW.event > 0
 AND NOT EXISTS (SELECT 1 FROM search_tail WHERE key = NEW.session_key AND last IS NULL)
BEGIN
    INSERT INTO search_tail (key, first) VALUES (NEW.session_key, NEW.sequence);
END;

ALTER TABLE events RENAME TO events_after;
DROP INDEX deltas_by_time;

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

CREATE VIEW "AgentMessage" AS
WITH RECURSIVE line (session_key, session_id, key, last) AS (
    SELECT key, id, key, messages
      FROM sessions
     WHERE repo_id IS NOT NULL
     UNION ALL
    SELECT l.session_key, l.session_id, s.forked_key, min(l.last, s.forked_at)
      FROM line l
      JOIN sessions s ON s.key = l.key
     WHERE s.forked_key IS NOT NULL
),
rows AS (
    SELECT l.session_key, l.session_id, m.sequence, m.role, m.created_at,
           lower(printf('%.8s-%.4s-%.4s-%.4s-%s', hex(m.id), substr(hex(m.id), 9),
                        substr(hex(m.id), 13), substr(hex(m.id), 17), substr(hex(m.id), 21))) AS id,
           CAST(m.parts AS TEXT) AS parts
      FROM line l
      JOIN messages m ON m.session_key = l.key AND m.sequence <= l.last
),
results AS MATERIALIZED (
    SELECT session_key, json_extract(parts, '$[0].call_id') AS call_id,
           min(sequence) AS sequence, created_at, parts,
           -- Two paths make a list, in which true and false stay what they are.
           substr(json_extract(parts, '$[0].result', '$[0].-'), 2,
                  length(json_extract(parts, '$[0].result', '$[0].-')) - 7) AS output
      FROM rows
     WHERE role = 'tool_result'
     GROUP BY session_key, json_extract(parts, '$[0].call_id')
),
words AS (
    SELECT r.*,
           (SELECT group_concat(said.text, '')
              FROM (SELECT CASE json_extract(p.value, '$.code')
                               WHEN 'error' THEN 'Turn failed: ' ELSE '' END
                           || json_extract(p.value, '$.text') AS text
                      FROM json_each(r.parts) p
                     WHERE json_extract(p.value, '$.type') IN ('text', 'notice')
                     ORDER BY p.key) said) AS text,
           (SELECT json_group_array(seen.ref)
              FROM (SELECT json_extract(p.value, '$.ref') AS ref
                      FROM json_each(r.parts) p
                     WHERE json_extract(p.value, '$.type') = 'media'
                     ORDER BY p.key) seen) AS media
      FROM rows r
     WHERE r.role IN ('user', 'assistant', 'system')
),
shown AS (
    SELECT session_id, id, sequence, created_at,
           CASE role WHEN 'assistant' THEN 'agent' ELSE role END AS role,
           CASE
               WHEN json_extract(parts, '$[0].type') = 'plan' THEN
                   json_object('type', 'plan', 'steps', json((
                       SELECT json_group_array(json(step.told))
                         FROM (SELECT json_object(
                                          'content', json_extract(p.value, '$.text'),
                                          'priority', coalesce(
                                              json_extract(p.value, '$.priority'), 'medium'),
                                          'status', json_extract(p.value, '$.status')) AS told
                                 FROM json_each(parts, '$[0].steps') p
                                ORDER BY p.key) step)))
               WHEN json_extract(parts, '$[0].type') = 'compaction' THEN
                   json_object('type', 'text', 'text', json_extract(parts, '$[0].summary'),
                               'code', 'compaction')
               ELSE json_patch(json_patch(
                   json_object('type', 'text', 'text', coalesce(text, '')),
                   CASE role WHEN 'assistant' THEN '{"partial":false}' ELSE '{}' END),
                   json_patch(
                       json_object('code', json_extract(parts, '$[0].code')),
                       CASE media WHEN '[]' THEN '{}'
                            ELSE json_object('media', json(media)) END))
           END AS content
      FROM words
     WHERE role != 'assistant' OR coalesce(text, '') != '' OR media != '[]'
     UNION ALL
    SELECT c.session_id, c.id, coalesce(r.sequence, c.sequence),
           coalesce(r.created_at, c.created_at), 'system',
           json_object(
               'type', 'tool',
               'tool', json_extract(c.parts, '$[0].name'),
               'args', json(json_extract(c.parts, '$[0].arguments')),
               'result', json(CASE WHEN r.parts IS NULL THEN 'null' ELSE json_object(
                   'status', json_extract(r.parts, '$[0].status'),
                   'output', json(r.output),
                   'error', json_extract(r.parts, '$[0].error.message')) END))
      FROM rows c
      LEFT JOIN results r ON r.session_key = c.session_key
                         AND r.call_id = json_extract(c.parts, '$[0].id')
     WHERE c.role = 'tool_call'
)
SELECT id,
       session_id AS "sessionId",
       role,
       content,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch')
           || printf('.%06dZ', created_at % 1000000) AS timestamp
  FROM shown
 ORDER BY session_id, sequence;
