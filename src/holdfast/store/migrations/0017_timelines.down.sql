-- No entity is wide until it is observed again: its events are kept for every id that it names.

DROP INDEX timeline_in_order;

CREATE TABLE names (
    key   INTEGER PRIMARY KEY,
    owner TEXT    NOT NULL,
    name  TEXT    NOT NULL
) STRICT;

CREATE UNIQUE INDEX names_by_name ON names (owner, name);

CREATE TABLE mentions (
    name_key   INTEGER NOT NULL REFERENCES names (key),
    entity_key INTEGER NOT NULL REFERENCES entities (key),
    is_wide    INTEGER NOT NULL,
    PRIMARY KEY (name_key, entity_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX mentions_by_entity ON mentions (entity_key);
CREATE INDEX mentions_wide ON mentions (name_key) WHERE is_wide = 1;

CREATE TABLE mentioned_timeline (
    name_key   INTEGER NOT NULL REFERENCES names (key),
    ms         INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    id         BLOB    NOT NULL,
    type       INTEGER NOT NULL,
    entity_key INTEGER NOT NULL REFERENCES entities (key),
    PRIMARY KEY (name_key, ms, rank, id)
) STRICT, WITHOUT ROWID;

INSERT INTO names (owner, name)
SELECT DISTINCT owner, name
  FROM mentioned_ids;

INSERT INTO mentions (name_key, entity_key, is_wide)
SELECT n.key, m.entity_key, 0
  FROM mentioned_ids m
  JOIN names n ON n.owner = m.owner AND n.name = m.name;

INSERT INTO mentioned_timeline (name_key, ms, rank, id, type, entity_key)
SELECT m.name_key, t.ms, t.rank, t.id, t.type, t.entity_key
  FROM mentions m
  JOIN timeline t ON t.entity_key = m.entity_key;

DROP TABLE mentioned_ids;
