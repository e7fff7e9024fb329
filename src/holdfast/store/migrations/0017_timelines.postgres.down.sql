-- No entity is wide until it is observed again: its events are kept for every id that it names.

DROP INDEX timeline_in_order;
ALTER TABLE mentions ADD COLUMN is_wide BIGINT NOT NULL DEFAULT 0;
CREATE INDEX mentions_wide ON mentions (name_key) WHERE is_wide = 1;

CREATE TABLE mentioned_timeline (
    name_key   BIGINT NOT NULL REFERENCES names (key),
    ms         BIGINT NOT NULL,
    rank       BIGINT NOT NULL,
    id         BYTEA  NOT NULL,
    type       BIGINT NOT NULL,
    entity_key BIGINT NOT NULL REFERENCES entities (key),
    PRIMARY KEY (name_key, ms, rank, id)
);

INSERT INTO mentioned_timeline (name_key, ms, rank, id, type, entity_key)
SELECT m.name_key, t.ms, t.rank, t.id, t.type, t.entity_key
  FROM mentions m
  JOIN timeline t ON t.entity_key = m.entity_key;
