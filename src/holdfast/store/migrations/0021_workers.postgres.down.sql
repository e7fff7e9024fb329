-- The calls that clients have claimed are treated as those of a process that has died.

DROP INDEX calls_requested_by_name;
DROP INDEX client_requests_by_claim;
ALTER TABLE client_requests DROP COLUMN until;
ALTER TABLE client_requests DROP COLUMN claim;
DROP TABLE workers;
