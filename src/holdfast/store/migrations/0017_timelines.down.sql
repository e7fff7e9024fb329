-- No entity is wide until it is observed again: its events are kept for every id that it names.

DROP INDEX timeline_in_order;
ALTER TABLE mentions ADD COLUMN is_wide INTEGER NOT NULL DEFAULT 0;
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

INSERT INTO mentioned_timeline (name_key, ms, rank, id, type, entity_key)
SELECT m.name_key, t.ms, t.rank, t.id, t.type, t.entity_key
  FROM mentions m
  JOIN timeline t ON t.entity_key = m.entity_key;
