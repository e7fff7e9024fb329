"""What `holdfast doctor` looks for in zones: damaged files and parts, and sizes that disagree."""

from holdfast.domain.errors import Internal
from holdfast.domain.zone_lines import Tally, tallied
from holdfast.domain.zones import PART_SIZE, ZoneFile
from holdfast.storage.sqlite import Connection
from holdfast.storage.zone_rows import file_of, part_of, rest_of
from holdfast.storage.zone_sql import PART, REST

FILES = """
-- Every file of every zone.
SELECT key, owner, zone, name, size, created_ms, modified_ms, generation, ended, tail,
       length(rest), rest_checksum, checksum
  FROM zone_files
 ORDER BY owner, zone, name
"""

NUMBERS = """
-- The numbers of a file's parts.
SELECT DISTINCT part
  FROM zone_parts
 WHERE file_key = :file_key
 ORDER BY part
"""


def zone_faults(connection: Connection) -> list[str]:
    """Return every fault, one sentence each; parts are read one at a time, for the memory."""
    found = []
    for row in connection.query(FILES):
        try:
            found += _of_file(connection, file_of(row))
        except Internal:
            found.append(f"{row[2]} {row[3]} is damaged.")
    return found


def _of_file(connection: Connection, file: ZoneFile) -> list[str]:
    named = f"{file.zone} {file.name}"
    found: list[str] = []
    tally, size = Tally(), 0
    for number, (part,) in enumerate(connection.query(NUMBERS, {"file_key": file.key})):
        what = f"part {part} of {named}"
        try:
            rows = connection.query(PART, {"file_key": file.key, "part": part})
            before, content = part_of(rows, what)
            if number == file.parts - 1:
                content += rest_of(connection.query(REST, {"key": file.key}), file, what)
        except Internal:
            return [*found, f"{what} is damaged."]
        is_full = len(content) == PART_SIZE or number == file.parts - 1
        if part != number or before != tally or not is_full:
            found.append(f"{what} does not go on where the one before it ends.")
        tally, size = tallied(tally, content), size + len(content)
    if (size, tally) != (file.size, Tally(file.ended, file.tail)):
        found.append(f"{named} has other bytes than it says.")
    return found
