-- Takes away all observed history, and what was computed from it.

DROP TABLE mentioned_timeline;
DROP TABLE mentions;
DROP TABLE names;
DROP TABLE timeline;
DROP TABLE snapshots;
DROP TABLE observations;
DROP TRIGGER sessions_are_entities ON sessions;
DROP FUNCTION lead_to_session;
DROP TABLE entities;
