-- Sessions and messages under the columns, words and times of the schema that names these views; a
-- fork shows what it inherits. For reading only.

DROP VIEW s2_messages;
DROP VIEW session_messages;
DROP VIEW agent_sessions;

CREATE VIEW agent_sessions AS
SELECT id,
       json_extract(body, '$.agent.slug') AS agent_slug,
       agent_id,
       json_extract(body, '$.agent') AS agent_snapshot,
       title,
       coalesce((SELECT m.provider || ':' || m.name FROM models m
                  WHERE m.id = json_extract(shown.body, '$.model_id')),
                json_extract(body, '$.model_id')) AS model_id,
       -- A merge patch leaves out what is null.
       json_patch('{}', json_object(
           'workingDir', json_extract(body, '$.context.working_dir'),
           'activeFile', json_extract(body, '$.context.active_file'),
           'selection', json(CASE WHEN json_extract(body, '$.context.selection') IS NOT NULL THEN
               json_object('file', json_extract(body, '$.context.selection.file'),
                           'startLine', json_extract(body, '$.context.selection.start_line'),
                           'endLine', json_extract(body, '$.context.selection.end_line'))
               ELSE 'null' END),
           'gitRef', json_extract(body, '$.context.git_ref'),
           'fsScopeTier', json_extract(body, '$.context.fs_scope_tier'),
           'variables', json(json_extract(body, '$.context.variables')))) AS context,
       CASE status WHEN 'pending' THEN 'idle' WHEN 'idle' THEN 'idle'
                   WHEN 'running' THEN 'streaming' ELSE 'ended' END AS status,
       tokens_in AS total_input_tokens,
       tokens_out AS total_output_tokens,
       microcents AS total_cost_microcents,
       (SELECT json_extract('{' || substr(CAST(e.payload AS TEXT), 2), '$.target')
          FROM events e
         WHERE e.key BETWEEN shown.key << 32 AND shown.key << 32 | 4294967295
           AND e.name = 'session.exported'
         ORDER BY e.key DESC
         LIMIT 1) AS exported_workflow_path,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch')
           || printf('.%03dZ', created_at / 1000 % 1000) AS created_at,
       strftime('%Y-%m-%dT%H:%M:%S', updated_at / 1000000, 'unixepoch')
           || printf('.%03dZ', updated_at / 1000 % 1000) AS updated_at
  FROM (SELECT s.*, CAST(o.body AS TEXT) AS body
          FROM sessions s
          JOIN openings o ON o.session_key = s.key) shown;

-- Every message under each session that shows it.
CREATE VIEW line_messages AS
WITH RECURSIVE line (session_id, key, last) AS (
    SELECT id, key, messages FROM sessions
     UNION ALL
    SELECT l.session_id, s.forked_key, min(l.last, s.forked_at)
      FROM line l
      JOIN sessions s ON s.key = l.key
     WHERE s.forked_key IS NOT NULL
)
SELECT lower(printf('%.8s-%.4s-%.4s-%.4s-%s', hex(m.id), substr(hex(m.id), 9),
                    substr(hex(m.id), 13), substr(hex(m.id), 17), substr(hex(m.id), 21))) AS id,
       l.session_id, m.sequence, m.role,
       CASE typeof(m.model_id) WHEN 'blob' THEN lower(printf(
           '%.8s-%.4s-%.4s-%.4s-%s', hex(m.model_id), substr(hex(m.model_id), 9),
           substr(hex(m.model_id), 13), substr(hex(m.model_id), 17), substr(hex(m.model_id), 21)))
           ELSE m.model_id END AS model_id,
       m.created_at, CAST(m.parts AS TEXT) AS parts
  FROM line l
  JOIN messages m ON m.key BETWEEN l.key << 32 AND l.key << 32 | l.last;

CREATE VIEW session_messages AS
SELECT id,
       session_id,
       sequence AS sequence_number,
       CASE role WHEN 'tool_call' THEN 'assistant' WHEN 'tool_result' THEN 'tool'
                 ELSE role END AS role,
       CASE role
       WHEN 'system' THEN json_array(json_object('type', 'text', 'text', (
           SELECT group_concat(said.text, char(10) || char(10))
             FROM (SELECT CASE json_extract(p.value, '$.type')
                              WHEN 'compaction' THEN json_extract(p.value, '$.summary')
                              WHEN 'plan' THEN coalesce((
                                  SELECT group_concat(step.text, char(10))
                                    FROM (SELECT '- ' || json_extract(s.value, '$.text') || ' ('
                                                 || json_extract(s.value, '$.status') || ')' AS text
                                            FROM json_each(p.value, '$.steps') s
                                           ORDER BY s.key) step), '')
                              ELSE json_extract(p.value, '$.text') END AS text
                     FROM json_each(parts) p
                    ORDER BY p.key) said)))
       WHEN 'tool_call' THEN json_array(json_object(
           'type', 'tool_call',
           'id', json_extract(parts, '$[0].id'),
           'name', json_extract(parts, '$[0].name'),
           'args', json(json_extract(parts, '$[0].arguments'))))
       WHEN 'tool_result' THEN
           json_array(json_remove(json_object(
               'type', 'tool_result',
               'toolCallId', json_extract(parts, '$[0].call_id'),
               'result', json(CASE WHEN json_type(parts, '$[0].result') != 'null' THEN
                   -- Two paths make a list, in which true and false stay what they are.
                   substr(json_extract(parts, '$[0].result', '$[0].-'), 2,
                          length(json_extract(parts, '$[0].result', '$[0].-')) - 7)
                   ELSE json_patch('{}', json_object(
                       'status', json_extract(parts, '$[0].status'),
                       'code', json_extract(parts, '$[0].error.code'),
                       'message', json_extract(parts, '$[0].error.message'))) END),
               'isError', json('true')),
               CASE json_extract(parts, '$[0].status') WHEN 'ok' THEN '$.isError' ELSE '$.-' END))
       ELSE (
           SELECT json_group_array(json(piece.part))
             FROM (SELECT CASE json_extract(p.value, '$.type')
                              WHEN 'media' THEN json_patch('{}', json_object(
                                  'type', 'media',
                                  'mimeType', json_extract(p.value, '$.mime_type'),
                                  'source', json_object(
                                      'kind', 'handle', 'ref', json_extract(p.value, '$.ref')),
                                  'name', json_extract(p.value, '$.name'),
                                  'byteLength', json_extract(p.value, '$.byte_length')))
                              ELSE json_object('type', json_extract(p.value, '$.type'),
                                               'text', json_extract(p.value, '$.text'))
                          END AS part
                     FROM json_each(parts) p
                    WHERE json_extract(p.value, '$.type') != 'output'
                    ORDER BY p.key) piece)
       END AS content,
       coalesce((SELECT m.provider || ':' || m.name FROM models m WHERE m.id = model_id),
                model_id) AS model_id,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch')
           || printf('.%03dZ', created_at / 1000 % 1000) AS timestamp
  FROM line_messages;

CREATE VIEW s2_messages AS
SELECT id,
       session_id,
       sequence,
       role,
       CASE role
           WHEN 'tool_call' THEN json_object(
               'id', json_extract(parts, '$[0].id'),
               'name', json_extract(parts, '$[0].name'),
               'arguments', json(json_extract(parts, '$[0].arguments')))
           WHEN 'tool_result' THEN json_object(
               -- Two paths make a list, in which true and false stay what they are.
               'result', json(substr(
                   json_extract(parts, '$[0].result', '$[0].-'), 2,
                   length(json_extract(parts, '$[0].result', '$[0].-')) - 7)),
               'error', CASE
                   WHEN json_extract(parts, '$[0].status') != 'unknown'
                     OR json_extract(parts, '$[0].error.message') LIKE 'outcome unknown%'
                       THEN json_extract(parts, '$[0].error.message')
                   ELSE 'outcome unknown'
                        || coalesce(': ' || json_extract(parts, '$[0].error.message'), '')
               END)
           ELSE json_object('text', coalesce((
               SELECT group_concat(said.text, '')
                 FROM (SELECT coalesce(json_extract(p.value, '$.text'),
                                       json_extract(p.value, '$.summary')) AS text
                         FROM json_each(parts) p
                        WHERE json_extract(p.value, '$.type') IN ('text', 'notice', 'compaction')
                        ORDER BY p.key) said), ''))
       END AS content,
       CASE role WHEN 'tool_result' THEN json_extract(parts, '$[0].call_id') END AS tool_call_id,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch')
           || printf('.%06dZ', created_at % 1000000) AS created_at
  FROM line_messages;
