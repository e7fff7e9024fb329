-- Checkpoints of graphs that a framework runs, with the values of their channels and what their
-- tasks have written. Contents are bytes of the framework's serializer, by the kind it gives them.

CREATE TABLE graph_checkpoints (
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    namespace   TEXT NOT NULL,
    id          TEXT NOT NULL,
    parent_id   TEXT,
    run_id      TEXT,
    hidden      INTEGER NOT NULL,
    body        BLOB NOT NULL,
    checksum    INTEGER NOT NULL,
    PRIMARY KEY (session_key, namespace, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX graph_checkpoints_by_run ON graph_checkpoints (run_id);

-- A list is stored by element: its content is its number and its length.
CREATE TABLE graph_values (
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    namespace   TEXT NOT NULL,
    channel     TEXT NOT NULL,
    version     TEXT NOT NULL,
    kind        TEXT NOT NULL,
    content     BLOB NOT NULL,
    checksum    INTEGER NOT NULL,
    PRIMARY KEY (session_key, namespace, channel, version)
) STRICT, WITHOUT ROWID;

-- Position -1 of a list names the list that it continues.
CREATE TABLE graph_items (
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    list        INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    content     BLOB NOT NULL,
    checksum    INTEGER NOT NULL,
    PRIMARY KEY (session_key, list, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE graph_writes (
    session_key   INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    namespace     TEXT NOT NULL,
    checkpoint_id TEXT NOT NULL,
    task_id       TEXT NOT NULL,
    number        INTEGER NOT NULL,
    task_path     TEXT NOT NULL,
    channel       TEXT NOT NULL,
    kind          TEXT NOT NULL,
    content       BLOB NOT NULL,
    checksum      INTEGER NOT NULL,
    PRIMARY KEY (session_key, namespace, checkpoint_id, task_id, number)
) STRICT, WITHOUT ROWID;
