-- Takes the views under the names of other schemas away again.

DROP VIEW s2_events;
DROP VIEW s2_messages;
DROP VIEW s2_sessions;
DROP VIEW s2_agents;
DROP VIEW llm_models;
DROP VIEW "Repo";
