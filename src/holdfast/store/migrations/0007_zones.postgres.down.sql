-- Takes away all zones with their files, and what was remembered of imports.

DROP TABLE marks;
DROP TABLE desks;
DROP TABLE zone_parts;
DROP TABLE zone_files;
