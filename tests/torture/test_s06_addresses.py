"""S06: beyond this machine nobody is served without TLS, ours or that of a proxy somebody named."""

import json
import os
import signal
from pathlib import Path

import pytest

from holdfast.cli.commands.serve import ServeOptions
from holdfast.domain.errors import HoldfastError
from holdfast.http.server import LOCAL, Exposure, listen
from tests.cli.processes import PATIENCE, ran, running
from tests.cli.server_probe import card_of
from tests.marks import proves
from tests.torture.conftest import Tell

pytestmark = pytest.mark.slow

# Where somebody wants to listen, and what comes of it: an address, or the code of a refusal.
PLAIN = {
    ServeOptions().host: "127.0.0.1",
    "localhost": "127.0.0.1",
    "127.0.0.2": "127.0.0.2",
    "::1": "::1",
    "0.0.0.0": "not_loopback",
    "::": "not_loopback",
    "[::]": "not_loopback",
    "::ffff:0.0.0.0": "not_loopback",
    "10.0.0.1": "not_loopback",
    "169.254.1.1": "not_loopback",
    "255.255.255.255": "not_loopback",
    "": "invalid_input",
    "0": "invalid_input",
    "example.org": "invalid_input",
    "localhost.evil.example": "invalid_input",
    "*": "invalid_input",
}
BEHIND_PROXY = {
    "0.0.0.0": "0.0.0.0",
    "::": "::",
    "": "invalid_input",
    "example.org": "invalid_input",
}


@proves("S06")
def test_only_this_machine_is_served_unless_somebody_says_more(tell: Tell) -> None:
    found = {host: came_of(host, LOCAL) for host in PLAIN}
    behind = {host: came_of(host, Exposure(is_behind_proxy=True)) for host in BEHIND_PROXY}

    tell(f"{len(found) + len(behind)} addresses")
    assert found == PLAIN
    assert behind == BEHIND_PROXY


@proves("S06")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "example.org"])
def test_the_command_refuses_before_anything_is_opened(home: Path, host: str) -> None:
    refused = ran(home, "serve", "--host", host, "--port", "0", "--json")

    expected = {"not_loopback": 3, "invalid_input": 2}
    assert refused.returncode == expected[json.loads(refused.stderr)["error"]]
    assert (refused.stdout, home.exists()) == ("", False)


@proves("S06")
def test_the_command_serves_beyond_this_machine_for_a_proxy_and_still_asks_who_comes(
    home: Path,
) -> None:
    words = ("serve", "--host", "0.0.0.0", "--port", "0", "--behind-proxy", "--json")
    with running(home, *words) as server:
        url = card_of(server)["url"]
        port = int(url.rpartition(":")[2])
        bound = listening(server.pid)
        os.kill(server.pid, signal.SIGTERM)
        server.communicate(timeout=PATIENCE)

    assert bound == {f"00000000:{port:04X}"}


@proves("S06")
def test_the_command_by_itself_serves_this_machine_only(home: Path) -> None:
    with running(home, "serve", "--port", "0", "--json") as server:
        port = int(card_of(server)["url"].rpartition(":")[2])
        bound = listening(server.pid)

    assert bound == {f"0100007F:{port:04X}"}


def came_of(host: str, exposure: Exposure) -> str:
    """Return the address that is listened on, or the code of the refusal."""
    try:
        with listen(host, 0, exposure) as listener:
            return str(listener.getsockname()[0])
    except HoldfastError as error:
        return str(error.code)


def listening(pid: int) -> set[str]:
    """Return what a process listens on, as the kernel writes it."""
    links = (each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir())
    sockets = {str(each)[8:-1] for each in links if str(each).startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.add(fields[1])
    return found
