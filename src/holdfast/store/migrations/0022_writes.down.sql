-- Frequent fields of events are spelled out again.

UPDATE events
   SET payload = CAST(
           replace(replace(replace(replace(replace(replace(replace(replace(
               CAST(payload AS TEXT),
               char(1), ',"step":'), char(2), ',"model":"'),
               char(3), ',"stop_reason":"stop"'), char(4), ',"usage":{"input":'),
               char(5), ',"output":'), char(6), ',"cache_read":'),
               char(7), ',"microcents":'), char(8), ',"priced":')
       AS BLOB)
 WHERE name IN ('step.started', 'step.ended', 'turn.ended');

DROP VIEW session_events;

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
