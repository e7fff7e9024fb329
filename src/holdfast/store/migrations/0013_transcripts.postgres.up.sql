-- Sessions and messages under the columns, words and times of the schema that names these views; a
-- fork shows what it inherits. For reading only.

DROP VIEW s2_messages;
DROP VIEW session_messages;
DROP VIEW agent_sessions;

CREATE FUNCTION spelled_ms(at BIGINT) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$
SELECT left(spelled_time(at), 23) || 'Z'
$$;

CREATE VIEW agent_sessions AS
WITH shown AS (
    SELECT s.*, read_json(o.body) AS body
      FROM sessions s
      JOIN openings o ON o.session_key = s.key
)
SELECT id,
       body #>> '{agent,slug}' AS agent_slug,
       agent_id,
       replace(CAST(body -> 'agent' AS TEXT), chr(65535), '\u0000') AS agent_snapshot,
       title,
       coalesce((SELECT m.provider || ':' || m.name FROM models m
                  WHERE m.id = shown.body ->> 'model_id'), body ->> 'model_id') AS model_id,
       CAST((SELECT json_strip_nulls(row_to_json(context))
               FROM (SELECT body #>> '{context,working_dir}' AS "workingDir",
                            body #>> '{context,active_file}' AS "activeFile",
                            CASE WHEN body #>> '{context,selection}' IS NOT NULL THEN
                                (SELECT row_to_json(marked)
                                   FROM (SELECT body #>> '{context,selection,file}' AS file,
                                                body #> '{context,selection,start_line}'
                                                    AS "startLine",
                                                body #> '{context,selection,end_line}'
                                                    AS "endLine") marked)
                            END AS selection,
                            body #>> '{context,git_ref}' AS "gitRef",
                            body #>> '{context,fs_scope_tier}' AS "fsScopeTier",
                            body #> '{context,variables}' AS variables) context)
            AS TEXT) AS context,
       CASE status WHEN 'pending' THEN 'idle' WHEN 'idle' THEN 'idle'
                   WHEN 'running' THEN 'streaming' ELSE 'ended' END AS status,
       tokens_in AS total_input_tokens,
       tokens_out AS total_output_tokens,
       microcents AS total_cost_microcents,
       (SELECT parsed_json(convert_to('{', 'UTF8') || substr(e.payload, 2)) ->> 'target'
          FROM events e
         WHERE e.key BETWEEN shown.key << 32 AND shown.key << 32 | 4294967295
           AND e.name = 'session.exported'
         ORDER BY e.key DESC
         LIMIT 1) AS exported_workflow_path,
       spelled_ms(created_at) AS created_at,
       spelled_ms(updated_at) AS updated_at
  FROM shown;

-- Every message under each session that shows it.
CREATE VIEW line_messages AS
WITH RECURSIVE line (session_id, key, last) AS (
    SELECT id, key, messages FROM sessions
     UNION ALL
    SELECT l.session_id, s.forked_key, least(l.last, s.forked_at)
      FROM line l
      JOIN sessions s ON s.key = l.key
     WHERE s.forked_key IS NOT NULL
)
SELECT CAST(CAST(encode(m.id, 'hex') AS UUID) AS TEXT) AS id,
       l.session_id, m.sequence, m.role, m.model_id, m.created_at, parsed_json(m.parts) AS parts
  FROM line l
  JOIN messages m ON m.key BETWEEN l.key << 32 AND l.key << 32 | l.last;

CREATE VIEW session_messages AS
SELECT id,
       session_id,
       sequence AS sequence_number,
       CASE role WHEN 'tool_call' THEN 'assistant' WHEN 'tool_result' THEN 'tool'
                 ELSE role END AS role,
       replace(CAST((
           SELECT CASE role
               WHEN 'system' THEN json_build_array(json_build_object(
                   'type', 'text', 'text', string_agg(
                              CASE p.part ->> 'type'
                                  WHEN 'compaction' THEN p.part ->> 'summary'
                                  WHEN 'plan' THEN coalesce((
                                      SELECT string_agg('- ' || (s.step ->> 'text') || ' ('
                                                        || (s.step ->> 'status') || ')', chr(10)
                                                        ORDER BY s.place)
                                        FROM json_array_elements(p.part -> 'steps')
                                             WITH ORDINALITY s (step, place)), '')
                                  ELSE p.part ->> 'text' END,
                              chr(10) || chr(10) ORDER BY p.place)))
               ELSE json_agg(CASE p.part ->> 'type'
                   WHEN 'tool_call' THEN json_build_object(
                       'type', 'tool_call', 'id', p.part ->> 'id', 'name', p.part ->> 'name',
                       'args', p.part -> 'arguments')
                   WHEN 'tool_result' THEN (
                       SELECT CASE p.part ->> 'status'
                           WHEN 'ok' THEN json_build_object(
                               'type', 'tool_result', 'toolCallId', p.part ->> 'call_id',
                               'result', outcome.value)
                           ELSE json_build_object(
                               'type', 'tool_result', 'toolCallId', p.part ->> 'call_id',
                               'result', outcome.value, 'isError', true) END
                         FROM (SELECT CASE
                                   WHEN p.part ->> 'result' IS NOT NULL THEN p.part -> 'result'
                                   ELSE json_strip_nulls(json_build_object(
                                       'status', p.part ->> 'status',
                                       'code', p.part #>> '{error,code}',
                                       'message', p.part #>> '{error,message}'))
                               END AS value) outcome)
                   WHEN 'media' THEN json_strip_nulls(json_build_object(
                       'type', 'media', 'mimeType', p.part ->> 'mime_type',
                       'source', json_build_object('kind', 'handle', 'ref', p.part ->> 'ref'),
                       'name', p.part ->> 'name', 'byteLength', p.part -> 'byte_length'))
                   ELSE json_build_object('type', p.part ->> 'type', 'text', p.part ->> 'text')
               END ORDER BY p.place)
               END
             FROM json_array_elements(parts) WITH ORDINALITY p (part, place)
            WHERE p.part ->> 'type' != 'output') AS TEXT), chr(65535), '\u0000') AS content,
       coalesce((SELECT m.provider || ':' || m.name FROM models m WHERE m.id = model_id),
                model_id) AS model_id,
       spelled_ms(created_at) AS timestamp
  FROM line_messages;

CREATE VIEW s2_messages AS
SELECT id,
       session_id,
       sequence,
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
       spelled_time(created_at) AS created_at
  FROM line_messages;
