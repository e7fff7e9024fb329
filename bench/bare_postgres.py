"""Bare Postgres: what the same bytes cost there without us."""

import asyncio
import time
from typing import Any

import asyncpg

from bench.yardsticks import PAYLOAD

TABLE = """
CREATE TABLE bare (session TEXT, sequence BIGINT, parts TEXT, PRIMARY KEY (session, sequence))
"""
INSERT = "INSERT INTO bare VALUES ($1, $2, $3)"
SELECT = "SELECT sequence, parts FROM bare WHERE session = $1 AND sequence >= $2"


async def raw_table(url: str) -> asyncpg.Connection:
    """Return a connection to a database that has a bare table now."""
    connection = await asyncpg.connect(url)
    await connection.execute(TABLE)
    return connection


async def raw_appends(connection: Any, first: int, count: int) -> float:
    """Return rows per second: one row, one commit."""
    started = time.perf_counter()
    for sequence in range(first, first + count):
        await connection.execute(INSERT, "one", sequence, PAYLOAD)
    return count / (time.perf_counter() - started)


async def raw_turns_at_once(connections: list[Any], first: int, count: int) -> float:
    """Return turns per second of as many sessions: four rows as four commits, and one read."""

    async def play(connection: Any, session: str) -> None:
        for turn in range(first, first + count):
            for row in range(4):
                await connection.execute(INSERT, session, turn * 4 + row, PAYLOAD)
            await connection.fetch(SELECT, session, turn * 4)

    started = time.perf_counter()
    await asyncio.gather(*(play(each, f"t{number}") for number, each in enumerate(connections)))
    return len(connections) * count / (time.perf_counter() - started)
