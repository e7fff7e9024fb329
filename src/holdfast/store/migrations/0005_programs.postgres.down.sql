-- Takes away what is known about programs; none of them may run.

DROP TABLE programs;
