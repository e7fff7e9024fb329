-- The timeline of an id is read from the events of those that name it; it was kept for each id.

-- Ids that entities name, such as those of outcomes; nothing of such an id has to be there.
CREATE TABLE mentioned_ids (
    owner      TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    entity_key INTEGER NOT NULL REFERENCES entities (key),
    PRIMARY KEY (owner, name, entity_key)
) STRICT, WITHOUT ROWID;

INSERT INTO mentioned_ids (owner, name, entity_key)
SELECT n.owner, n.name, m.entity_key
  FROM mentions m
  JOIN names n ON n.key = m.name_key;

CREATE INDEX mentioned_ids_by_entity ON mentioned_ids (entity_key);

DROP TABLE mentioned_timeline;
DROP TABLE mentions;
DROP TABLE names;

-- To count events without reading them.
CREATE INDEX timeline_in_order ON timeline (entity_key, ms, rank, id, type);
