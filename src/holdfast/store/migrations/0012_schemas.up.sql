-- The record under the names, columns and words of the schemas that others know; for reading only.
-- Where one of our own tables has the name, the view has the prefix s2_.

CREATE VIEW "Repo" AS
SELECT id,
       name,
       path,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch')
           || printf('.%06dZ', created_at % 1000000) AS "createdAt"
  FROM repos;

CREATE VIEW llm_models AS
SELECT id,
       provider,
       name,
       json_extract(body, '$.display_name') AS display_name,
       json_extract(body, '$.context_window') AS context_window,
       json_extract(body, '$.max_output') AS max_output
  FROM (SELECT id, provider, name, CAST(body AS TEXT) AS body FROM models);

CREATE VIEW s2_agents AS
SELECT id,
       slug,
       name,
       json_extract(body, '$.description') AS description,
       json_extract(body, '$.system_prompt') AS system_prompt,
       json_extract(body, '$.runtime.models[0].model_id') AS default_model_id,
       json_extract(body, '$.runtime.temperature') AS temperature,
       json_extract(body, '$.runtime.max_tokens') AS max_tokens,
       json_extract(body, '$.tools') AS tools,
       json_extract(body, '$.tags') AS tags,
       status,
       json_extract(body, '$.created_at') AS created_at,
       json_extract(body, '$.updated_at') AS updated_at
  FROM (SELECT id, slug, name, status, CAST(body AS TEXT) AS body FROM agents);

-- The words of `/v1`: an open session is as its last turn ended, or pending while a turn waits.
CREATE VIEW s2_sessions AS
SELECT id,
       agent_id,
       title,
       json_extract(body, '$.tags') AS tags,
       json_extract(body, '$.model_id') AS model_id,
       word AS status,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch')
           || printf('.%06dZ', created_at % 1000000) AS created_at,
       strftime('%Y-%m-%dT%H:%M:%S', started_at / 1000000, 'unixepoch')
           || printf('.%06dZ', started_at % 1000000) AS started_at,
       CASE WHEN word NOT IN ('pending', 'running') THEN
           strftime('%Y-%m-%dT%H:%M:%S', finished_at / 1000000, 'unixepoch')
               || printf('.%06dZ', finished_at % 1000000) END AS finished_at
  FROM (SELECT s.id, s.agent_id, s.title, s.created_at, s.started_at, s.finished_at,
               CAST(o.body AS TEXT) AS body,
               CASE
                   WHEN s.status IN ('pending', 'running', 'failed') THEN s.status
                   WHEN s.status = 'idle' AND s.turn > s.settled THEN 'pending'
                   WHEN s.status = 'idle' AND s.last_stop IN ('budget', 'error', 'turn_limit')
                       THEN 'failed'
                   ELSE 'completed'
               END AS word
          FROM sessions s
          JOIN openings o ON o.session_key = s.key);

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

-- An id is computed as for readers: a UUID of version 7 from the time, the session and the number.
CREATE VIEW s2_events AS
SELECT printf('%s-%s-7%03x-%s%s-%s%05x',
              substr(printf('%012x', at / 1000), 1, 8), substr(printf('%012x', at / 1000), 9),
              sequence & 4095,
              substr('89ab89ab89ab89ab', instr('0123456789abcdef', substr(session_id, -11, 1)), 1),
              substr(session_id, -10, 3), substr(session_id, -7), (sequence >> 12) & 1048575) AS id,
       session_id,
       sequence,
       CASE name
           WHEN 'approval.answered' THEN 'tool.approval_answered'
           WHEN 'approval.requested' THEN 'tool.approval_requested'
           WHEN 'call.settled' THEN 'tool.settled'
           WHEN 'message.appended' THEN 'message.created'
           WHEN 'session.closed' THEN CASE json_extract(payload, '$.status')
               WHEN 'failed' THEN 'session.failed' ELSE 'session.completed' END
           WHEN 'step.delta' THEN 'step.generating'
           WHEN 'step.ended' THEN 'step.generated'
           WHEN 'step.failed' THEN 'step.error'
           WHEN 'tool.ended' THEN CASE json_extract(payload, '$.has_run')
               WHEN 0 THEN 'tool.refused' ELSE 'tool.completed' END
           WHEN 'turn.ended' THEN CASE
               WHEN json_extract(payload, '$.stop_reason') IN ('budget', 'error', 'turn_limit')
                   THEN 'session.failed' ELSE 'session.completed' END
           WHEN 'turn.started' THEN 'session.started'
           ELSE name
       END AS event_type,
       json_remove(payload, '$.type') AS data,
       strftime('%Y-%m-%dT%H:%M:%S', at / 1000000, 'unixepoch')
           || printf('.%06dZ', at % 1000000) AS created_at
  FROM session_events;
