"""The statements about files of zones and their parts."""

ONE = """
-- A file of a zone.
SELECT key, owner, zone, name, size, created_ms, modified_ms, generation, ended, tail, rest,
       checksum
  FROM zone_files
 WHERE owner = :owner
   AND zone = :zone
   AND name = :name
"""

OF_ZONE = """
-- The files of a zone.
SELECT key, owner, zone, name, size, created_ms, modified_ms, generation, ended, tail, rest,
       checksum
  FROM zone_files
 WHERE owner = :owner
   AND zone = :zone
 ORDER BY name
"""

NAMES = """
-- An owner's zones whose names begin with a text.
SELECT DISTINCT zone
  FROM zone_files
 WHERE owner = :owner
   AND zone >= :prefix
   AND zone < :behind
 ORDER BY zone
"""

EVERYBODYS = """
-- All zones.
SELECT DISTINCT owner, zone
  FROM zone_files
 ORDER BY owner, zone
"""

ADD = """
-- A new file.
INSERT INTO zone_files (owner, zone, name, size, created_ms, modified_ms, generation, ended, tail,
                        rest, checksum)
VALUES (:owner, :zone, :name, :size, :created_ms, :modified_ms, :generation, :ended, :tail,
        :rest, :checksum)
RETURNING key
"""

SAVE = """
-- A file as it is now.
UPDATE zone_files
   SET zone = :zone, name = :name, size = :size, created_ms = :created_ms,
       modified_ms = :modified_ms, generation = :generation, ended = :ended, tail = :tail,
       rest = :rest, checksum = :checksum
 WHERE key = :key
"""

GROW = """
-- A file has more bytes now; without its names, so that no index is touched.
UPDATE zone_files
   SET size = :size, modified_ms = :modified_ms, ended = :ended, tail = :tail, rest = :rest,
       checksum = :checksum
 WHERE key = :key
"""

REMOVE = """
-- A file goes, its parts with it.
DELETE FROM zone_files
 WHERE key = :key
"""

PART = """
-- One part of a file.
SELECT part, ended, tail, checksum, content
  FROM zone_parts
 WHERE file_key = :file_key
   AND part = :part
"""

PUT = """
-- A part as it is now.
INSERT INTO zone_parts (file_key, part, ended, tail, checksum, content)
VALUES (:file_key, :part, :ended, :tail, :checksum, :content)
ON CONFLICT (file_key, part)
DO UPDATE SET checksum = excluded.checksum, content = excluded.content
"""

EMPTY = """
-- The content of a file goes.
DELETE FROM zone_parts
 WHERE file_key = :file_key
"""

BEFORE = """
-- The last part that begins before a line has begun.
SELECT part
  FROM zone_parts
 WHERE file_key = :file_key
   AND ended < :line
 ORDER BY ended DESC, part DESC
 LIMIT 1
"""

COPY = """
-- The content of one file for another.
INSERT INTO zone_parts (file_key, part, ended, tail, checksum, content)
SELECT :target, part, ended, tail, checksum, content
  FROM zone_parts
 WHERE file_key = :source
"""
