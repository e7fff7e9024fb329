-- Checkpoints of graphs that a framework runs, with the values of their channels and what their
-- tasks have written. Contents are bytes of the framework's serializer, by the kind it gives them.

CREATE TABLE graph_checkpoints (
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    namespace   TEXT COLLATE "C" NOT NULL,
    id          TEXT COLLATE "C" NOT NULL,
    parent_id   TEXT COLLATE "C",
    run_id      TEXT COLLATE "C",
    hidden      BIGINT NOT NULL,
    body        BYTEA NOT NULL,
    checksum    BIGINT NOT NULL,
    PRIMARY KEY (session_key, namespace, id)
);

CREATE INDEX graph_checkpoints_by_run ON graph_checkpoints (run_id);

-- A list is stored by element: its content is its number and its length.
CREATE TABLE graph_values (
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    namespace   TEXT COLLATE "C" NOT NULL,
    channel     TEXT COLLATE "C" NOT NULL,
    version     TEXT COLLATE "C" NOT NULL,
    kind        TEXT COLLATE "C" NOT NULL,
    content     BYTEA NOT NULL,
    checksum    BIGINT NOT NULL,
    PRIMARY KEY (session_key, namespace, channel, version)
);

-- Position -1 of a list names the list that it continues.
CREATE TABLE graph_items (
    session_key BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    list        BIGINT NOT NULL,
    position    BIGINT NOT NULL,
    kind        TEXT COLLATE "C" NOT NULL,
    content     BYTEA NOT NULL,
    checksum    BIGINT NOT NULL,
    PRIMARY KEY (session_key, list, position)
);

CREATE TABLE graph_writes (
    session_key   BIGINT NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    namespace     TEXT COLLATE "C" NOT NULL,
    checkpoint_id TEXT COLLATE "C" NOT NULL,
    task_id       TEXT COLLATE "C" NOT NULL,
    number        BIGINT NOT NULL,
    task_path     TEXT COLLATE "C" NOT NULL,
    channel       TEXT COLLATE "C" NOT NULL,
    kind          TEXT COLLATE "C" NOT NULL,
    content       BYTEA NOT NULL,
    checksum      BIGINT NOT NULL,
    PRIMARY KEY (session_key, namespace, checkpoint_id, task_id, number)
);
