-- Takes away the questions and the kept contents; the record stays whole.

DROP TRIGGER media_go_with_their_last_use;
DROP TABLE media_uses;
DROP TABLE media;
DROP TABLE approvals;
