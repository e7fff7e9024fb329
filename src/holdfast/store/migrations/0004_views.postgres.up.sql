-- What surfaces need: requests that are recognised when they are repeated, a quick look at open
-- sessions in repositories, and the record under the names of the schema that others know.

ALTER TABLE agents ADD COLUMN digest BYTEA;

CREATE INDEX sessions_at_work ON sessions (key)
 WHERE repo_id IS NOT NULL AND status IN ('pending', 'running', 'idle');

CREATE FUNCTION spelled_time(at BIGINT) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$
SELECT to_char(to_timestamp(at / 1000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
       || '.' || lpad(CAST(at % 1000000 AS TEXT), 6, '0') || 'Z'
$$;

-- Read-only, because of the WITH: what is written to a plainer view is written to its table.
CREATE VIEW "AgentSession" AS
WITH shown AS (
    SELECT id,
           repo_id AS "repoId",
           CASE status
               WHEN 'completed' THEN 'completed'
               WHEN 'cancelled' THEN 'cancelled'
               WHEN 'failed' THEN 'error'
               ELSE 'active'
           END AS status,
           spelled_time(created_at) AS "createdAt",
           spelled_time(updated_at) AS "updatedAt"
      FROM sessions
     WHERE repo_id IS NOT NULL
)
SELECT * FROM shown;

-- A fork shows what it inherits as its own; a call and its result are one row, at the place of the
-- result once there is one; what has nothing to show but reasoning is left out. Objects are made of
-- rows, because those are written without spaces, as in a file.
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
