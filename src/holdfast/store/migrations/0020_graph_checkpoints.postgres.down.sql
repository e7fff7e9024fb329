-- Graphs cannot be continued; the messages made of their states stay.

DROP TABLE graph_writes;
DROP TABLE graph_items;
DROP TABLE graph_values;
DROP TABLE graph_checkpoints;
