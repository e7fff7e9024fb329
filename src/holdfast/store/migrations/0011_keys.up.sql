-- Messages and events move into tables with one integer key, the session above the number: a row is
-- appended to a leaf that holds no other tree's keys, and a commit writes fewer pages.

DROP VIEW "AgentMessage";
DROP VIEW session_messages;
DROP VIEW session_events;
DROP VIEW news;

DROP INDEX sessions_unsettled;
DROP INDEX sessions_held;

-- One entry per session with an open turn or a lease; a commit that changes neither leaves it alone.
CREATE INDEX sessions_unsettled ON sessions (key) WHERE turn > settled OR holder IS NOT NULL;

ALTER TABLE messages RENAME TO messages_before;
DROP INDEX messages_by_id;
DROP TRIGGER messages_are_never_edited;
DROP TRIGGER messages_are_never_removed_one_by_one;
DROP TRIGGER messages_are_searched;

-- `event` is the number of the event that announces the message, `event_checksum` protects it.
CREATE TABLE messages (
    key            INTEGER PRIMARY KEY,
    id             BLOB    NOT NULL,
    turn           INTEGER NOT NULL,
    role           TEXT    NOT NULL,
    model_id       ANY,
    created_at     INTEGER NOT NULL,
    hash           BLOB    NOT NULL,
    event          INTEGER NOT NULL,
    event_checksum INTEGER NOT NULL,
    parts          BLOB    NOT NULL,
    session_key    INTEGER NOT NULL AS (key >> 32) VIRTUAL,
    sequence       INTEGER NOT NULL AS (key & 4294967295) VIRTUAL
) STRICT;

INSERT INTO messages (key, id, turn, role, model_id, created_at, hash, event, event_checksum, parts)
SELECT session_key << 32 | sequence, id, turn, role, model_id, created_at, hash, event, told, parts
  FROM messages_before
 ORDER BY session_key, sequence;

DROP TABLE messages_before;

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

ALTER TABLE events RENAME TO events_before;
DROP INDEX events_deltas;

CREATE TABLE events (
    key         INTEGER PRIMARY KEY,
    turn        INTEGER,
    at          INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    ids         BLOB,
    payload     BLOB    NOT NULL,
    checksum    INTEGER NOT NULL,
    session_key INTEGER NOT NULL AS (key >> 32) VIRTUAL,
    sequence    INTEGER NOT NULL AS (key & 4294967295) VIRTUAL
) STRICT;

-- Deltas are pruned; in a table of their own they leave whole pages and no holes.
CREATE TABLE deltas (
    key         INTEGER PRIMARY KEY,
    turn        INTEGER,
    at          INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    ids         BLOB,
    payload     BLOB    NOT NULL,
    checksum    INTEGER NOT NULL,
    session_key INTEGER NOT NULL AS (key >> 32) VIRTUAL,
    sequence    INTEGER NOT NULL AS (key & 4294967295) VIRTUAL
) STRICT;

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

-- Both in one order: SQLite merges them as it reads.
CREATE VIEW stored_events AS
SELECT key, session_key, sequence, turn, at, name, ids, payload, checksum FROM deltas
 UNION ALL
SELECT key, session_key, sequence, turn, at, name, ids, payload, checksum FROM events;

-- A foreign key would search for the rows of a session without an index.
CREATE TRIGGER sessions_take_their_rows_along
AFTER DELETE ON sessions
BEGIN
    DELETE FROM messages WHERE key BETWEEN OLD.key << 32 AND OLD.key << 32 | 4294967295;
    DELETE FROM events WHERE key BETWEEN OLD.key << 32 AND OLD.key << 32 | 4294967295;
    DELETE FROM deltas WHERE key BETWEEN OLD.key << 32 AND OLD.key << 32 | 4294967295;
END;

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
  FROM sessions s
 CROSS JOIN events e ON e.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
 UNION ALL
SELECT s.id, e.sequence, e.turn, e.at, e.name,
       '{"type":"' || e.name || '"'
       || CASE WHEN e.ids IS NULL THEN '' ELSE ',"message_id":"' || lower(printf(
              '%.8s-%.4s-%.4s-%.4s-%.12s"', hex(e.ids), substr(hex(e.ids), 9),
              substr(hex(e.ids), 13), substr(hex(e.ids), 17), substr(hex(e.ids), 21))) END
       || CASE length(e.ids) WHEN 32 THEN ',"model_id":"' || lower(printf(
              '%.8s-%.4s-%.4s-%.4s-%.12s"', substr(hex(e.ids), 33), substr(hex(e.ids), 41),
              substr(hex(e.ids), 45), substr(hex(e.ids), 49), substr(hex(e.ids), 53))) ELSE '' END
       || CAST(e.payload AS TEXT)
  FROM sessions s
 CROSS JOIN deltas e ON e.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
 UNION ALL
SELECT s.id, m.event, nullif(m.turn, 0), m.created_at, 'message.appended',
       json_object('type', 'message.appended', 'message_id', lower(printf(
                       '%.8s-%.4s-%.4s-%.4s-%s', hex(m.id), substr(hex(m.id), 9),
                       substr(hex(m.id), 13), substr(hex(m.id), 17), substr(hex(m.id), 21))),
                   'role', m.role, 'sequence', m.sequence)
  FROM sessions s
 CROSS JOIN messages m ON m.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
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
  FROM sessions s
 CROSS JOIN messages m ON m.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295;

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
      JOIN messages m ON m.key BETWEEN l.key << 32 AND l.key << 32 | l.last
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
                       SELECT json_group_array(json(step.shown))
                         FROM (SELECT json_object(
                                          'content', json_extract(p.value, '$.text'),
                                          'priority', coalesce(
                                              json_extract(p.value, '$.priority'), 'medium'),
                                          'status', json_extract(p.value, '$.status')) AS shown
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
