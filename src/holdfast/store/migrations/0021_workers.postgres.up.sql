-- Processes that run tools, and the claims of clients on the calls that they run.

CREATE TABLE workers (
    owner    TEXT COLLATE "C" NOT NULL,
    id       TEXT COLLATE "C" NOT NULL,
    until    BIGINT NOT NULL,
    body     BYTEA NOT NULL,
    checksum BIGINT NOT NULL,
    PRIMARY KEY (owner, id)
);

ALTER TABLE client_requests ADD COLUMN claim TEXT COLLATE "C";
-- Until when a call is reserved or claimed, in microseconds.
ALTER TABLE client_requests ADD COLUMN until BIGINT NOT NULL DEFAULT 0;

CREATE INDEX client_requests_by_claim ON client_requests (claim) WHERE claim IS NOT NULL;
CREATE INDEX calls_requested_by_name ON calls (name, session_key) WHERE state = 'requested';
