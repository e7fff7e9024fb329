-- Zones: files in parts of 64 KiB, who sits at which desk, and marks of work that is done once.

CREATE TABLE zone_files (
    key           INTEGER PRIMARY KEY,
    owner         TEXT    NOT NULL,
    zone          TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    size          INTEGER NOT NULL,
    created_ms    INTEGER NOT NULL,
    modified_ms   INTEGER NOT NULL,
    generation    TEXT    NOT NULL,
    ended         INTEGER NOT NULL,
    tail          BLOB,
    -- The last bytes, while they are few: to write a line, no other row has to be written.
    rest          BLOB    NOT NULL,
    rest_checksum INTEGER NOT NULL,
    checksum      INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX zone_files_by_name ON zone_files (owner, zone, name);

-- A part in one piece or, while a file grows, in several, each where it starts in its part. Beside
-- the first stands what was counted before the part: a line is found without the rest.
CREATE TABLE zone_parts (
    key      INTEGER PRIMARY KEY,
    file_key INTEGER NOT NULL REFERENCES zone_files (key) ON DELETE CASCADE,
    part     INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    ended    INTEGER NOT NULL,
    tail     BLOB,
    checksum INTEGER NOT NULL,
    content  BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX zone_parts_in_order ON zone_parts (file_key, part, start);
CREATE INDEX zone_parts_by_line ON zone_parts (file_key, ended, part) WHERE start = 0;

CREATE TABLE desks (
    owner       TEXT    NOT NULL,
    zone        TEXT    NOT NULL,
    session_key INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    PRIMARY KEY (owner, zone)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX desks_by_session ON desks (session_key);

CREATE TABLE marks (
    name TEXT    PRIMARY KEY,
    at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
