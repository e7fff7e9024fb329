-- Search: which words stand where, computed from what was said and claimed.

-- A document is a message, a title, or a claim, and its number says which. Each word of it stands
-- here once and without its place; what is asked for beyond words is looked up in the text. A
-- vector holds a megabyte: a document with more words is looked at in every search.
CREATE TABLE search_index (
    document BIGINT PRIMARY KEY,
    words    TSVECTOR NOT NULL,
    is_large BOOLEAN NOT NULL
);

CREATE INDEX search_index_by_word ON search_index USING gin (words);
CREATE INDEX search_index_large ON search_index (document) WHERE is_large;

CREATE VIEW search_words AS
SELECT word AS term, document AS doc
  FROM search_index, unnest(tsvector_to_array(words)) word;

-- What is asked for in the words of the other database's index.
CREATE FUNCTION asked_for(expression TEXT) RETURNS TSQUERY LANGUAGE sql IMMUTABLE AS $$
SELECT CAST(
    replace(replace(replace(
        regexp_replace(regexp_replace(expression, '"([^"]*)" \*', '''\1'':*', 'g'),
                       '"([^"]*)"', '''\1''', 'g'),
        ' AND ', ' & '), ' OR ', ' | '), ' NOT ', ' & !') AS TSQUERY)
$$;

-- What is not in the index yet, and is read through: from a number on, or up to another one. The
-- title of a session is its number 0; below zero the key is an entity's, and the numbers its claims.
CREATE TABLE search_tail (
    key   BIGINT NOT NULL,
    first BIGINT NOT NULL,
    last  BIGINT,
    PRIMARY KEY (key, first)
);

-- Titles change: this is what the index holds of them.
CREATE TABLE search_titles (
    session_key BIGINT PRIMARY KEY,
    title       TEXT COLLATE "C" NOT NULL
);

-- Words that are to be taken out of the index, of documents that are gone.
CREATE TABLE search_graves (
    document BIGINT PRIMARY KEY,
    words    TEXT COLLATE "C" NOT NULL
);

-- What a fork takes over when it is detached has no event, and is noted by who copies it; a title,
-- which is written with every change of a session, is noted by who changes it.
CREATE FUNCTION note_message() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM search_tail WHERE key = NEW.session_key AND last IS NULL) THEN
        INSERT INTO search_tail (key, first) VALUES (NEW.session_key, NEW.sequence);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER messages_are_searched
AFTER INSERT ON messages
FOR EACH ROW WHEN (NEW.event > 0) EXECUTE FUNCTION note_message();

CREATE FUNCTION note_claim() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM search_tail WHERE key = -NEW.entity_key AND last IS NULL) THEN
        INSERT INTO search_tail (key, first) VALUES (-NEW.entity_key, NEW.ordinal);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER observations_are_searched
AFTER INSERT ON observations
FOR EACH ROW EXECUTE FUNCTION note_claim();

-- What was written before there was an index.
INSERT INTO search_tail (key, first)
SELECT session_key, min(sequence) FROM messages GROUP BY session_key;

INSERT INTO search_tail (key, first, last)
SELECT key, 0, 0 FROM sessions WHERE title IS NOT NULL;

INSERT INTO search_tail (key, first)
SELECT -entity_key, min(ordinal) FROM observations GROUP BY entity_key;
