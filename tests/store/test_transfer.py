"""What a copy takes along: every table that is not computed, in the order of its key."""

from pathlib import Path

from holdfast.store.sqlite.connection import connect
from holdfast.store.sqlite.migrate import up
from holdfast.store.transfer.run import TABLES
from tests.store.conftest import KEY

KEYS = """
SELECT m.name, group_concat(c.name, ', ' ORDER BY c.pk)
  FROM sqlite_schema m, pragma_table_info(m.name) c
 WHERE m.type = 'table' AND c.pk > 0 AND m.name NOT LIKE 'search%'
 GROUP BY m.name
"""

REFERENCES = """
SELECT m.name, f."table"
  FROM sqlite_schema m, pragma_foreign_key_list(m.name) f
 WHERE m.type = 'table' AND m.name != f."table"
"""


def test_every_table_is_copied_by_its_key_and_after_what_it_refers_to(file: Path) -> None:
    connection = connect(file, KEY)
    up(connection)
    keys = dict(connection.query(KEYS))
    references = connection.query(REFERENCES)
    connection.close()
    order = list(TABLES)

    assert keys == {"migrations": "number", **TABLES}
    assert [pair for pair in references if order.index(pair[0]) < order.index(pair[1])] == []
