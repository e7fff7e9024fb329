-- Paused turns continue when their questions are answered or expire, as before.

DROP TABLE waits;
