-- The timeline of an id is read from the events of those that name it; it was kept for each id.

DROP TABLE mentioned_timeline;
DROP INDEX mentions_wide;
ALTER TABLE mentions DROP COLUMN is_wide;

-- To count events without reading them.
CREATE INDEX timeline_in_order ON timeline (entity_key, ms, rank, id, type);
