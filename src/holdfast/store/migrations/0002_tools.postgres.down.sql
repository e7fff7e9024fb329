-- Takes away the questions and the kept contents; the record stays whole.

DROP TABLE media_uses;
DROP FUNCTION take_unused_media;
DROP TABLE media;
DROP TABLE approvals;
