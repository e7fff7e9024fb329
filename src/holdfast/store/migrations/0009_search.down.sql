DROP TRIGGER observations_are_searched;
DROP TRIGGER messages_are_searched;
DROP TABLE search_graves;
DROP TABLE search_titles;
DROP TABLE search_tail;
DROP TABLE search_words;
DROP TABLE search_index;
