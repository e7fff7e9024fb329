-- Shows the views as they were before.

DROP VIEW s2_messages;
DROP VIEW session_messages;
DROP VIEW line_messages;
DROP VIEW agent_sessions;
DROP FUNCTION spelled_ms;

CREATE VIEW agent_sessions AS
WITH shown AS (
    SELECT id, owner, agent_id, repo_id, title, status, tokens_in AS total_input_tokens,
           tokens_out AS total_output_tokens, microcents AS total_cost_microcents,
           created_at, updated_at
      FROM sessions
)
SELECT * FROM shown;

CREATE VIEW session_messages AS
SELECT CAST(CAST(encode(m.id, 'hex') AS UUID) AS TEXT) AS id,
       s.id AS session_id, m.sequence AS sequence_number, m.role,
       convert_from(m.parts, 'UTF8') AS content, m.model_id, m.created_at AS timestamp
  FROM sessions s
  JOIN messages m ON m.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295;

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
