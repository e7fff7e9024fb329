-- What surfaces need: requests that are recognised when they are repeated, a quick look at open
-- sessions in repositories, and the record under the names of the schema that others know.

ALTER TABLE agents ADD COLUMN digest BYTEA;

CREATE INDEX sessions_at_work ON sessions (key)
 WHERE repo_id IS NOT NULL AND status IN ('pending', 'running', 'idle');

CREATE FUNCTION spelled_time(at BIGINT) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$
SELECT to_char(to_timestamp(at / 1000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
       || '.' || lpad(CAST(at % 1000000 AS TEXT), 6, '0') || 'Z'
$$;

CREATE VIEW "AgentSession" AS
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
 WHERE repo_id IS NOT NULL;

-- A fork shows what it inherits as its own; a call and its result are one row, at the place of the
-- result once there is one; what has nothing to show but reasoning is left out.
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
           CAST(convert_from(m.parts, 'UTF8') AS JSON) AS parts
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
           (SELECT json_agg(p.part ->> 'ref' ORDER BY p.place)
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
                   json_build_object('type', 'plan', 'steps', (
                       SELECT coalesce(json_agg(json_build_object(
                                  'content', p.step ->> 'text',
                                  'priority', coalesce(p.step ->> 'priority', 'medium'),
                                  'status', p.step ->> 'status') ORDER BY p.place), '[]')
                         FROM json_array_elements(parts -> 0 -> 'steps')
                              WITH ORDINALITY p (step, place)))
               WHEN 'compaction' THEN
                   json_build_object('type', 'text', 'text', parts -> 0 ->> 'summary',
                                     'code', 'compaction')
               ELSE json_strip_nulls(json_build_object(
                   'type', 'text', 'text', coalesce(text, ''),
                   'partial', CASE role WHEN 'assistant' THEN FALSE END,
                   'code', parts -> 0 ->> 'code', 'media', media))
           END AS content
      FROM words
     WHERE role != 'assistant' OR coalesce(text, '') != '' OR media IS NOT NULL
     UNION ALL
    SELECT c.session_id, c.id, coalesce(r.sequence, c.sequence),
           coalesce(r.created_at, c.created_at), 'system',
           json_build_object(
               'type', 'tool',
               'tool', c.parts -> 0 ->> 'name',
               'args', c.parts -> 0 -> 'arguments',
               'result', CASE WHEN r.parts IS NOT NULL THEN json_build_object(
                   'status', r.parts -> 0 ->> 'status',
                   'output', r.output,
                   'error', r.parts -> 0 -> 'error' ->> 'message') END)
      FROM rows c
      LEFT JOIN results r ON r.session_key = c.session_key
                         AND r.call_id = c.parts -> 0 ->> 'id'
     WHERE c.role = 'tool_call'
)
SELECT id,
       session_id AS "sessionId",
       role,
       CAST(content AS TEXT) AS content,
       spelled_time(created_at) AS timestamp
  FROM shown
 ORDER BY session_id, sequence;
