"""`holdfast zones … --server`: desks behind a server, in the same words as beside it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.processes import PATIENCE, beside, running
from tests.cli.remote_server import Far, Server, serve

pytestmark = pytest.mark.slow

LINE = '{"role":"user","text":"größe"}'
READS = (
    *(("show", "a"), ("read", "a"), ("read", "a", "--output"), ("read", "a", "--start", "1")),
    *(("read", "a", "--start", "-3", "--limit", "1"), ("replay", "a", "--page", "1")),
    *(("archives", "a"), ("archives", "a", "--limit", "1"), ("show", "b"), ("read", "b")),
)


@pytest.fixture
def server(home: Path) -> Iterator[Server]:
    """Run a server."""
    with serve(home) as found:
        yield found


@pytest.fixture
def far(server: Server, cli: Cli, tmp_path: Path) -> Far:
    """Be somebody with the server's token and a home of their own."""
    return Far(server, cli, tmp_path / "elsewhere")


def test_a_desk_goes_through_its_life_over_there(far: Far) -> None:
    written = far("zones", "write", "a", "--json", stdin="größe").document
    appended = far("zones", "append", "a", stdin=f"{LINE}\n{{}}")
    size = len(f"{LINE}\n{{}}\n".encode())
    for command in READS:
        far.both("zones", *command)
    archived = far("zones", "archive", "a", "--json").document
    ms = str(archived["archived_at_ms"])
    far.both("zones", "read", "a", ms)
    far.both("zones", "read", "a", ms, "--output")
    far.both("zones", "archives", "a")
    restored = far("zones", "restore", "a", ms).out
    again = far("zones", "restore", "a", ms, "--json").document
    deleted = [far("zones", "delete", "a", ms).out for _ in range(2)]

    assert written["bytes_written"] == 7
    assert appended.out == f"Appended {size} bytes to agent:a:current.\n"
    assert archived["files"] == {"output": size, "output.state.json": 7}
    assert restored == f"Copied agent:a:archive:{ms} to the active zone.\n"
    assert again["displaced"] not in (None, archived["archive_zoneid"])
    assert deleted == ["Deleted.\n", "There is no such archive.\n"]
    assert far("zones", "read", "a").out == "größe\n"
    assert far("zones", "archive", "b").out == "The active zone is empty.\n"


def test_removing_everything_is_done_where_the_server_runs(far: Far) -> None:
    told = far("zones", "purge", "a", "--confirm", "a")

    assert (told.code, "run it on the server's machine" in told.err) == (2, True)


def test_the_output_is_followed_from_afar(server: Server) -> None:
    beside(server.home, "zones", "append", "a", stdin="old\n")
    command = ("zones", "read", "a", "--follow", "--start", "0", "--server", server.url)
    with running(server.home, *command) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        beside(server.home, "zones", "append", "a", stdin="no JSON, and whole\n")
        second = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=PATIENCE)

    assert (first, second, code) == ("old\n", "no JSON, and whole\n", 130)
