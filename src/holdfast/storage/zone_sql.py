"""The statements about files of zones and their parts."""

ONE = """
-- A file of a zone.
SELECT key, owner, zone, name, size, created_ms, modified_ms, generation, ended, tail,
       length(rest), rest_checksum, checksum
  FROM zone_files
 WHERE owner = :owner
   AND zone = :zone
   AND name = :name
"""

OF_ZONE = """
-- The files of a zone.
SELECT key, owner, zone, name, size, created_ms, modified_ms, generation, ended, tail,
       length(rest), rest_checksum, checksum
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
                        rest, rest_checksum, checksum)
VALUES (:owner, :zone, :name, :size, :created_ms, :modified_ms, :generation, :ended, :tail,
        :rest, :rest_checksum, :checksum)
RETURNING key
"""

SAVE = """
-- A file as it is now.
UPDATE zone_files
   SET zone = :zone, name = :name, size = :size, created_ms = :created_ms,
       modified_ms = :modified_ms, generation = :generation, ended = :ended, tail = :tail,
       checksum = :checksum
 WHERE key = :key
"""

GROW = """
-- A file has a few more bytes now; without its names, so that no index is touched.
UPDATE zone_files
   SET size = :size, modified_ms = :modified_ms, ended = :ended, tail = :tail,
       rest = CAST(rest || :more AS BLOB), rest_checksum = :rest_checksum, checksum = :checksum
 WHERE key = :key
"""

SETTLE = """
-- All bytes of a file, however many, are in its parts.
UPDATE zone_files
   SET size = :size, modified_ms = :modified_ms, generation = :generation, ended = :ended,
       tail = :tail, rest = :nothing, rest_checksum = :rest_checksum, checksum = :checksum
 WHERE key = :key
"""

REST = """
-- The last bytes of a file.
SELECT rest
  FROM zone_files
 WHERE key = :key
"""

REMOVE = """
-- A file goes, its parts with it.
DELETE FROM zone_files
 WHERE key = :key
"""

REMOVE_ALL = """
-- All files of a zone go.
DELETE FROM zone_files
 WHERE owner = :owner
   AND zone = :zone
RETURNING key
"""

IS_TAKEN = """
-- Whether a zone has a file.
SELECT 1
  FROM zone_files
 WHERE owner = :owner
   AND zone = :zone
 LIMIT 1
"""

PART = """
-- The pieces of a part.
SELECT part, start, ended, tail, checksum, content
  FROM zone_parts
 WHERE file_key = :file_key
   AND part = :part
 ORDER BY start
"""

PUT = """
-- A part, or its first piece.
INSERT INTO zone_parts (file_key, part, start, ended, tail, checksum, content)
VALUES (:file_key, :part, 0, :ended, :tail, :checksum, :content)
"""

LAY = """
-- The last bytes of a file, and more, are a piece of its last part.
INSERT INTO zone_parts (file_key, part, start, ended, tail, checksum, content)
SELECT key, :part, :start, 0, NULL, :checksum, CAST(rest || :more AS BLOB)
  FROM zone_files
 WHERE key = :file_key
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
   AND start = 0
   AND ended < :line
 ORDER BY ended DESC, part DESC
 LIMIT 1
"""

COPY = """
-- The content of one file for another.
INSERT INTO zone_parts (file_key, part, start, ended, tail, checksum, content)
SELECT :target, part, start, ended, tail, checksum, content
  FROM zone_parts
 WHERE file_key = :source
"""
