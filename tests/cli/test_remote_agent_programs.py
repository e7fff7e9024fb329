"""Agents that are programs, made and talked to behind a server: the program runs there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acp.scripted_agents import Peer
from tests.cli.conftest import Cli
from tests.cli.remote_server import Far, serve

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Name the folder below which the server's programs may work."""
    (tmp_path / "root" / "tree" / ".git").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def far(cli: Cli, tmp_path: Path, root: Path) -> Iterator[Far]:
    """Run a server, and the command against it."""
    with serve(tmp_path / "server", AGENT_WORKSPACE_ROOT=str(root)) as server:
        yield Far(server, cli, tmp_path / "person")


def test_a_program_answers_behind_a_server(far: Far, root: Path, tmp_path: Path) -> None:
    peer = Peer(tmp_path / "peer")
    program, *words = peer.argv
    args = [f"--arg={word}" for word in words]
    log = f"--writable={peer.folder}"
    far("agents", "create", "--name", "Peer", "--command", program, log, *args)

    ran = far("chat", "hello", "--agent", "peer", "--repo", str(root / "tree"))
    nowhere = far("chat", "hello", "--agent", "peer", "--json")

    assert (ran.code, ran.out) == (0, "ok\n")
    assert peer.log("start")[0]["cwd"] == str(root / "tree")
    assert (nowhere.code, nowhere.error["error"]) == (2, "repo_required")
