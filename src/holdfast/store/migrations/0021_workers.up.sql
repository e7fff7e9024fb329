-- Processes that run tools, and the claims of clients on the calls that they run.

CREATE TABLE workers (
    owner    TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    until    INTEGER NOT NULL,
    body     BLOB    NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (owner, id)
) STRICT, WITHOUT ROWID;

ALTER TABLE client_requests ADD COLUMN claim TEXT;
-- Until when a call is reserved or claimed, in microseconds.
ALTER TABLE client_requests ADD COLUMN until INTEGER NOT NULL DEFAULT 0;

CREATE INDEX client_requests_by_claim ON client_requests (claim) WHERE claim IS NOT NULL;
CREATE INDEX calls_requested_by_name ON calls (name, session_key) WHERE state = 'requested';
