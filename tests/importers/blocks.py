"""Folders as another program leaves them: blocks in one database, their files in another."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw
import msgspec

PART = 64 * 1024


def a_folder(folder: Path) -> Path:
    """Make the databases of such a program, without blocks."""
    folder.mkdir(parents=True)
    with apsw.Connection(str(folder / "objects.db")) as objects:
        objects.execute(
            "CREATE TABLE db_block (oid varchar(36) PRIMARY KEY, version int, data json)"
        )
    objects.close()
    with apsw.Connection(str(folder / "files.db")) as files:
        files.execute(
            "CREATE TABLE db_file (zoneid varchar(36), name varchar(200), size bigint,"
            " createdts bigint, modts bigint, opts json, meta json, PRIMARY KEY (zoneid, name))"
        )
        files.execute(
            "CREATE TABLE db_data (zoneid varchar(36), name varchar(200), partidx int, data blob,"
            " PRIMARY KEY (zoneid, name, partidx))"
        )
    files.close()
    (folder / "notes.txt").write_text("no database")
    return folder


def a_block(folder: Path, oid: str, meta: Mapping[str, Any]) -> None:
    """Add a block."""
    connection = apsw.Connection(str(folder / "objects.db"))
    data = msgspec.json.encode({"oid": oid, "meta": meta}).decode()
    connection.execute("INSERT INTO db_block VALUES (?, 1, ?)", (oid, data))
    connection.close()


def a_file(folder: Path, oid: str, name: str, content: bytes, times: tuple[int, int]) -> None:
    """Add a file to the zone of a block, made and changed at the given times."""
    connection = apsw.Connection(str(folder / "files.db"))
    row = (oid, name, len(content), *times)
    connection.execute("INSERT INTO db_file VALUES (?, ?, ?, ?, ?, '{}', '{}')", row)
    for number, start in enumerate(range(0, len(content), PART)):
        part = (oid, name, number, content[start : start + PART])
        connection.execute("INSERT INTO db_data VALUES (?, ?, ?, ?)", part)
    connection.close()


def agent_block(
    folder: Path, oid: str, agent: str, state: bytes | None, times: tuple[int, int] = (100, 200)
) -> None:
    """Add a block of an agent, with a snapshot if there is one."""
    a_block(folder, oid, {"view": "agent", "agentId": agent})
    if state is not None:
        a_file(folder, oid, "output.state.json", state, times)
