"""Two servers on one file, seen from outside: who holds what, and when it changes hands."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw

from holdfast.store.sqlite.connection import set_key
from tests.torture.crew import Crew, wait_until
from tests.torture.machine import DATABASE, pid_of
from tests.torture.notebooks import key_beside, looking
from tests.torture.nursery import Process
from tests.torture.recovery import waiting

HELD = """
SELECT id, holder, status
  FROM sessions
 ORDER BY key
"""


@dataclass(frozen=True)
class Hold:
    """Who holds a session, by process number, and what the row says of it."""

    session: str
    pid: int | None
    status: str


def holds(home: Path) -> dict[str, Hold]:
    """Return the state of every session."""
    with looking(home) as connection:
        return {
            row[0]: Hold(row[0], pid_of(row[1]) if row[1] else None, row[2])
            for row in connection.execute(HELD)
        }


class Servers:
    """Servers by name; each one's model says its name."""

    def __init__(self, crew: Crew, home: Path) -> None:
        self._crew = crew
        self._home = home
        self.running: dict[str, Process] = {}

    def start(self, name: str, **options: object) -> None:
        """Start a server and wait until it is ready."""
        process = self._crew.start("serve", home=self._home, said=name, **options)
        self.running[name] = process
        wait_until(lambda: "ready" in self._crew.log_of(process) or process.poll() is not None)
        assert process.poll() is None, self._crew.log_of(process)

    def named(self, pid: int | None) -> str | None:
        """Return the name of the server with a process number."""
        return next((name for name, each in self.running.items() if each.pid == pid), None)

    def holder_of_a_turn(self, ask: Callable[[], None]) -> str:
        """Ask for turns until one of the servers is seen to play one, and return its name."""
        found: list[str] = []

        def look() -> bool:
            for hold in holds(self._home).values():
                name = self.named(hold.pid)
                if name and hold.status == "running":
                    found.append(name)
            # Whoever looks too slowly sees nothing, and has to ask once more.
            return bool(found) or not waiting(self._home)

        while not found:
            ask()
            wait_until(look)
        return found[0]

    def logs(self) -> str:
        """Return everything that the servers have printed."""
        return "\n".join(self._crew.log_of(each) for each in self._crew.processes)


def write_lock_is_free(home: Path) -> bool:
    """Tell whether somebody could write now; a process stopped amid a commit keeps everyone out.

    Postgres ends such a transaction by itself.
    """
    if DATABASE in os.environ:
        return True
    connection = apsw.Connection(str(home / "history.db"))
    try:
        key = key_beside(home)
        if key is not None:
            set_key(connection, key)
        connection.set_busy_timeout(50)
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True


def said_by(payload: bytes) -> str:
    """Return the word that a delta's text is made of."""
    words = str(json.loads(payload).get("text", "")).split()
    return words[-1] if words else ""
