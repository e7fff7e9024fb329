-- Shows the views as they were before.

DROP VIEW s2_messages;
DROP VIEW session_messages;
DROP VIEW line_messages;
DROP VIEW agent_sessions;

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
  FROM sessions s
 CROSS JOIN messages m ON m.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295;

CREATE VIEW s2_messages AS
SELECT id,
       session_id,
       sequence_number AS sequence,
       role,
       CASE role
           WHEN 'tool_call' THEN json_object(
               'id', json_extract(content, '$[0].id'),
               'name', json_extract(content, '$[0].name'),
               'arguments', json(json_extract(content, '$[0].arguments')))
           WHEN 'tool_result' THEN json_object(
               -- Two paths make a list, in which true and false stay what they are.
               'result', json(substr(
                   json_extract(content, '$[0].result', '$[0].-'), 2,
                   length(json_extract(content, '$[0].result', '$[0].-')) - 7)),
               'error', CASE
                   WHEN json_extract(content, '$[0].status') != 'unknown'
                     OR json_extract(content, '$[0].error.message') LIKE 'outcome unknown%'
                       THEN json_extract(content, '$[0].error.message')
                   ELSE 'outcome unknown'
                        || coalesce(': ' || json_extract(content, '$[0].error.message'), '')
               END)
           ELSE json_object('text', coalesce((
               SELECT group_concat(said.text, '')
                 FROM (SELECT coalesce(json_extract(p.value, '$.text'),
                                       json_extract(p.value, '$.summary')) AS text
                         FROM json_each(content) p
                        WHERE json_extract(p.value, '$.type') IN ('text', 'notice', 'compaction')
                        ORDER BY p.key) said), ''))
       END AS content,
       CASE role WHEN 'tool_result' THEN json_extract(content, '$[0].call_id') END AS tool_call_id,
       strftime('%Y-%m-%dT%H:%M:%S', timestamp / 1000000, 'unixepoch')
           || printf('.%06dZ', timestamp % 1000000) AS created_at
  FROM session_messages;
