-- What a framework wrote is lost to it; the messages made of it stay.

DROP TABLE foreign_records;
DROP TABLE foreign_sessions;
