-- What surfaces need: requests that are recognised when they are repeated, a quick look at open
-- sessions in repositories, and the record under the names of the schema that others know.

ALTER TABLE agents ADD COLUMN digest BLOB;

CREATE INDEX sessions_at_work ON sessions (key)
 WHERE repo_id IS NOT NULL AND status IN ('pending', 'running', 'idle');

CREATE VIEW "AgentSession" AS
SELECT id,
       repo_id AS "repoId",
       CASE status
           WHEN 'completed' THEN 'completed'
           WHEN 'cancelled' THEN 'cancelled'
           WHEN 'failed' THEN 'error'
           ELSE 'active'
       END AS status,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch')
           || printf('.%06dZ', created_at % 1000000) AS "createdAt",
       strftime('%Y-%m-%dT%H:%M:%S', updated_at / 1000000, 'unixepoch')
           || printf('.%06dZ', updated_at % 1000000) AS "updatedAt"
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
