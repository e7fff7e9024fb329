-- Turns that a program holds are run by their agents afterwards, as those of a killed process.

DROP TABLE held_turns;
