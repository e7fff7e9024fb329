-- The record under the names, columns and words of the schemas that others know; for reading only.
-- Where one of our own tables has the name, the view has the prefix s2_.

CREATE VIEW "Repo" AS
WITH shown AS (
    SELECT id, name, path, spelled_time(created_at) AS "createdAt" FROM repos
)
SELECT * FROM shown;

CREATE VIEW llm_models AS
WITH shown AS (
    SELECT id,
           provider,
           name,
           read_json(body) ->> 'display_name' AS display_name,
           CAST(read_json(body) ->> 'context_window' AS BIGINT) AS context_window,
           CAST(read_json(body) ->> 'max_output' AS BIGINT) AS max_output
      FROM models
)
SELECT * FROM shown;

CREATE VIEW s2_agents AS
WITH bodies AS (
    SELECT id, slug, name, status, read_json(body) AS body FROM agents
)
SELECT id,
       slug,
       name,
       body ->> 'description' AS description,
       body ->> 'system_prompt' AS system_prompt,
       body #>> '{runtime,models,0,model_id}' AS default_model_id,
       CAST(body #>> '{runtime,temperature}' AS DOUBLE PRECISION) AS temperature,
       CAST(body #>> '{runtime,max_tokens}' AS BIGINT) AS max_tokens,
       CAST(body -> 'tools' AS TEXT) AS tools,
       CAST(body -> 'tags' AS TEXT) AS tags,
       status,
       body ->> 'created_at' AS created_at,
       body ->> 'updated_at' AS updated_at
  FROM bodies;

-- The words of `/v1`: an open session is as its last turn ended, or pending while a turn waits.
CREATE VIEW s2_sessions AS
WITH shown AS (
    SELECT s.id, s.agent_id, s.title, s.created_at, s.started_at, s.finished_at,
           read_json(o.body) AS body,
           CASE
               WHEN s.status IN ('pending', 'running', 'failed') THEN s.status
               WHEN s.status = 'idle' AND s.turn > s.settled THEN 'pending'
               WHEN s.status = 'idle' AND s.last_stop IN ('budget', 'error', 'turn_limit')
                   THEN 'failed'
               ELSE 'completed'
           END AS word
      FROM sessions s
      JOIN openings o ON o.session_key = s.key
)
SELECT id,
       agent_id,
       title,
       CAST(body -> 'tags' AS TEXT) AS tags,
       body ->> 'model_id' AS model_id,
       word AS status,
       spelled_time(created_at) AS created_at,
       CASE WHEN started_at IS NOT NULL THEN spelled_time(started_at) END AS started_at,
       CASE WHEN finished_at IS NOT NULL AND word NOT IN ('pending', 'running')
            THEN spelled_time(finished_at) END AS finished_at
  FROM shown;

CREATE VIEW s2_messages AS
WITH rows AS (
    SELECT id, session_id, sequence_number, role, timestamp,
           parsed_json(convert_to(content, 'UTF8')) AS parts
      FROM session_messages
)
SELECT id,
       session_id,
       sequence_number AS sequence,
       role,
       replace(CAST(CASE role
           WHEN 'tool_call' THEN
               (SELECT row_to_json(shown)
                  FROM (SELECT parts -> 0 ->> 'id' AS id, parts -> 0 ->> 'name' AS name,
                               parts -> 0 -> 'arguments' AS arguments) shown)
           WHEN 'tool_result' THEN
               (SELECT row_to_json(shown)
                  FROM (SELECT parts -> 0 -> 'result' AS result,
                               CASE
                                   WHEN parts -> 0 ->> 'status' != 'unknown'
                                     OR parts -> 0 -> 'error' ->> 'message' LIKE 'outcome unknown%'
                                       THEN parts -> 0 -> 'error' ->> 'message'
                                   ELSE 'outcome unknown'
                                        || coalesce(': ' || (parts -> 0 -> 'error' ->> 'message'),
                                                    '')
                               END AS error) shown)
           ELSE
               (SELECT row_to_json(shown)
                  FROM (SELECT coalesce(
                                   string_agg(coalesce(p.part ->> 'text', p.part ->> 'summary'), ''
                                              ORDER BY p.place), '') AS text
                          FROM json_array_elements(parts) WITH ORDINALITY p (part, place)
                         WHERE p.part ->> 'type' IN ('text', 'notice', 'compaction')) shown)
       END AS TEXT), chr(65535), '\u0000') AS content,
       CASE role WHEN 'tool_result' THEN parts -> 0 ->> 'call_id' END AS tool_call_id,
       spelled_time(timestamp) AS created_at
  FROM rows;

-- An id is computed as for readers: a UUID of version 7 from the time, the session and the number.
CREATE VIEW s2_events AS
WITH rows AS (
    SELECT session_id, sequence, at, name, payload,
           lpad(to_hex(at / 1000), 12, '0') AS ms,
           right(session_id, 12) AS own,
           CASE WHEN name IN ('session.closed', 'tool.ended', 'turn.ended')
                THEN read_json(convert_to(payload, 'UTF8')) END AS body
      FROM session_events
)
SELECT substr(ms, 1, 8) || '-' || substr(ms, 9) || '-7' || lpad(to_hex(sequence & 4095), 3, '0')
       || '-' || substr('89ab89ab89ab89ab', strpos('0123456789abcdef', substr(own, 2, 1)), 1)
       || substr(own, 3, 3) || '-' || substr(own, 6)
       || lpad(to_hex((sequence >> 12) & 1048575), 5, '0') AS id,
       session_id,
       sequence,
       CASE name
           WHEN 'approval.answered' THEN 'tool.approval_answered'
           WHEN 'approval.requested' THEN 'tool.approval_requested'
           WHEN 'call.settled' THEN 'tool.settled'
           WHEN 'message.appended' THEN 'message.created'
           WHEN 'session.closed' THEN CASE body ->> 'status'
               WHEN 'failed' THEN 'session.failed' ELSE 'session.completed' END
           WHEN 'step.delta' THEN 'step.generating'
           WHEN 'step.ended' THEN 'step.generated'
           WHEN 'step.failed' THEN 'step.error'
           WHEN 'tool.ended' THEN CASE body ->> 'has_run'
               WHEN 'false' THEN 'tool.refused' ELSE 'tool.completed' END
           WHEN 'turn.ended' THEN CASE
               WHEN body ->> 'stop_reason' IN ('budget', 'error', 'turn_limit')
                   THEN 'session.failed' ELSE 'session.completed' END
           WHEN 'turn.started' THEN 'session.started'
           ELSE name
       END AS event_type,
       -- As text, because a payload may contain a NUL, which no JSON of Postgres can.
       CASE WHEN payload = '{"type":"' || name || '"}' THEN '{}'
            ELSE '{' || substr(payload, length('{"type":"' || name || '",') + 1) END AS data,
       spelled_time(at) AS created_at
  FROM rows;
