-- Search: which words stand where, computed from what was said and claimed.

-- A document is a message, a title, or a claim, and its number says which. Each word of it stands
-- here once and without its place; what is asked for beyond words is looked up in the text. The
-- text is not kept here again, so whoever takes a document out has to name its words.
CREATE VIRTUAL TABLE search_index USING fts5 (
    words, content = '', columnsize = 0, detail = none, tokenize = 'ascii'
);

CREATE VIRTUAL TABLE search_words USING fts5vocab (search_index, instance);

-- What is not in the index yet, and is read through: from a number on, or up to another one. The
-- title of a session is its number 0; below zero the key is an entity's, and the numbers its claims.
CREATE TABLE search_tail (
    key   INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last  INTEGER,
    PRIMARY KEY (key, first)
) STRICT, WITHOUT ROWID;

-- Titles change: this is what the index holds of them.
CREATE TABLE search_titles (
    session_key INTEGER PRIMARY KEY,
    title       TEXT    NOT NULL
) STRICT;

-- Words that are to be taken out of the index, of documents that are gone.
CREATE TABLE search_graves (
    document INTEGER PRIMARY KEY,
    words    TEXT    NOT NULL
) STRICT;

-- What a fork takes over when it is detached has no event, and is noted by who copies it; a title,
-- which is written with every change of a session, is noted by who changes it.
CREATE TRIGGER messages_are_searched
AFTER INSERT ON messages
WHEN NEW.event > 0
 AND NOT EXISTS (SELECT 1 FROM search_tail WHERE key = NEW.session_key AND last IS NULL)
BEGIN
    INSERT INTO search_tail (key, first) VALUES (NEW.session_key, NEW.sequence);
END;

CREATE TRIGGER observations_are_searched
AFTER INSERT ON observations
WHEN NOT EXISTS (SELECT 1 FROM search_tail WHERE key = -NEW.entity_key AND last IS NULL)
BEGIN
    INSERT INTO search_tail (key, first) VALUES (-NEW.entity_key, NEW.ordinal);
END;

-- What was written before there was an index.
INSERT INTO search_tail (key, first)
SELECT session_key, min(sequence) FROM messages GROUP BY session_key;

INSERT INTO search_tail (key, first, last)
SELECT key, 0, 0 FROM sessions WHERE title IS NOT NULL;

INSERT INTO search_tail (key, first)
SELECT -entity_key, min(ordinal) FROM observations GROUP BY entity_key;
