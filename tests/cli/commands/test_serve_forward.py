"""`holdfast serve` brings an older store up to this program by itself, and refuses a newer one."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cli.processes import PATIENCE, ran, running
from tests.cli.test_command import until_line


@pytest.mark.torture
@pytest.mark.slow
def test_an_older_store_is_brought_up_when_the_server_starts(home: Path) -> None:
    ran(home, "chat", "My name is Ada.")
    down = ran(home, "migrate", "down", "--to", "2", "--force", "--json")
    assert json.loads(down.stdout)["store"] == 2

    with running(home, "serve", "--port", "0") as server:
        until_line(server)
        os.kill(server.pid, signal.SIGTERM)
        _, err = server.communicate(timeout=PATIENCE)

    assert "Migrated the store: 0003_tokens, 0004_views" in err
    status = json.loads(ran(home, "migrate", "status", "--json").stdout)
    assert status["store"] == status["program"]
    assert "My name is Ada." in ran(home, "sessions", "list").stdout
