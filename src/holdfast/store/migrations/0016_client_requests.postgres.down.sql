-- A call that still waits for its client cannot be read afterwards: answer it, or end its turn.

DROP INDEX calls_requested;
DROP TABLE client_requests;
