-- Takes the whole notebook away again; only an empty store should go this far down.

DROP VIEW session_messages;
DROP VIEW session_events;
DROP VIEW news;
DROP VIEW agent_sessions;
DROP TABLE costs;
DROP TABLE calls;
DROP TABLE events;
DROP TABLE messages;
DROP FUNCTION refuse_lone_removal;
DROP TABLE tombstones;
DROP TABLE openings;
DROP TABLE sessions;
DROP SEQUENCE session_keys;
DROP TABLE repos;
DROP TABLE models;
DROP TABLE agents;
DROP TABLE writers;
DROP TABLE migrations;
DROP FUNCTION refuse_change;
DROP FUNCTION read_json;
DROP FUNCTION parsed_json;
DROP FUNCTION listed;
DROP FUNCTION folded;
