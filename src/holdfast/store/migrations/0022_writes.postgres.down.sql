-- Frequent fields of events are spelled out again.

UPDATE events
   SET payload = convert_to(
           replace(replace(replace(replace(replace(replace(replace(replace(
               convert_from(payload, 'UTF8'),
               chr(1), ',"step":'), chr(2), ',"model":"'), chr(3), ',"stop_reason":"stop"'),
               chr(4), ',"usage":{"input":'), chr(5), ',"output":'),
               chr(6), ',"cache_read":'), chr(7), ',"microcents":'), chr(8), ',"priced":'),
       'UTF8')
 WHERE name IN ('step.started', 'step.ended', 'turn.ended');

CREATE OR REPLACE VIEW session_events AS
SELECT s.id AS session_id, e.sequence, e.turn, e.at, e.name,
       '{"type":"' || e.name || '"'
       || CASE WHEN e.ids IS NULL THEN '' ELSE
              ',"message_id":"' || CAST(encode(substr(e.ids, 1, 16), 'hex') AS UUID) || '"' END
       || CASE length(e.ids) WHEN 32 THEN
              ',"model_id":"' || CAST(encode(substr(e.ids, 17), 'hex') AS UUID) || '"' ELSE '' END
       || convert_from(e.payload, 'UTF8') AS payload
  FROM sessions s
  JOIN events e ON e.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
 UNION ALL
SELECT s.id, e.sequence, e.turn, e.at, e.name,
       '{"type":"' || e.name || '"'
       || CASE WHEN e.ids IS NULL THEN '' ELSE
              ',"message_id":"' || CAST(encode(substr(e.ids, 1, 16), 'hex') AS UUID) || '"' END
       || CASE length(e.ids) WHEN 32 THEN
              ',"model_id":"' || CAST(encode(substr(e.ids, 17), 'hex') AS UUID) || '"' ELSE '' END
       || convert_from(e.payload, 'UTF8')
  FROM sessions s
  JOIN deltas e ON e.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
 UNION ALL
SELECT s.id, m.event, nullif(m.turn, 0), m.created_at, 'message.appended',
       '{"type":"message.appended","message_id":"' || CAST(encode(m.id, 'hex') AS UUID)
       || '","role":"' || m.role || '","sequence":' || m.sequence || '}'
  FROM sessions s
  JOIN messages m ON m.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
 WHERE m.event > 0;

DROP TRIGGER messages_are_searched ON messages;

CREATE OR REPLACE FUNCTION note_message() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM search_tail WHERE key = NEW.session_key AND last IS NULL) THEN
        INSERT INTO search_tail (key, first) VALUES (NEW.session_key, NEW.sequence);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER messages_are_searched
AFTER INSERT ON messages
FOR EACH ROW WHEN (NEW.event > 0) EXECUTE FUNCTION note_message();
