-- Takes away the names that others know, and what makes repeated requests recognisable.

DROP VIEW "AgentMessage";
DROP VIEW "AgentSession";
DROP INDEX sessions_at_work;
ALTER TABLE agents DROP COLUMN digest;
