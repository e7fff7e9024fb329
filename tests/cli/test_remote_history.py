"""`holdfast history|timeline --server`: the same words from afar, and history survives a kill."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands.test_history import SESSION, UNIT
from tests.cli.conftest import Cli
from tests.cli.processes import PATIENCE, running
from tests.cli.remote_server import Far, Server, serve
from tests.cli.server_probe import card_of, got, sent
from tests.marks import demands

pytestmark = pytest.mark.slow

READS = (
    *(("history", "query"), ("history", "query", "abc123"), ("timeline",), ("timeline", "FU-061")),
    *(("history", "query", "abc123", "--at", "2020-01-01"), ("history", "observations", "abc123")),
    *(("history", "checkpoint", "abc123", "spec_complete"), ("timeline", "nobody")),
    *(("history", "entities", "feature_unit", "--filters", '{"status":"planning"}'),),
    ("history", "entities", "feature_unit", "--session", "abc123", "--from", "2020-01-01"),
    ("history", "observations", "abc123", "--from", "2020-01-01", "--to", "2999-01-01"),
    *(("history", "query", "--order-by", "session_id", "--order", "asc", "--limit", "1"),),
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


def test_history_is_told_and_read_over_there(far: Far) -> None:
    told = far("history", "submit", stdin=json.dumps(SESSION))
    keyed = far("history", "submit", "--idempotency-key", "k", stdin=json.dumps(SESSION))
    unit = far("history", "submit-entity", "feature_unit", stdin=json.dumps(UNIT))
    far("history", "submit", stdin=json.dumps({**SESSION, "session_id": "other-1"}))
    for command in READS:
        far.both(*command)
    corrected = far("history", "correct", "abc123", "duration", "null", "--json").document
    hidden = far("history", "delete", "abc123", "--reason", "private")
    missing = far("history", "query", "abc123")
    shown = far("history", "restore", "abc123", "--json").document

    assert (told.code, keyed.code, unit.code) == (0, 0, 0)
    assert corrected["observation_count"] == 3
    assert (hidden.code, missing.code, shown["deleted"]) == (0, 4, False)


@demands("S3-112")
def test_history_survives_the_sudden_death_of_the_server(home: Path) -> None:
    with running(home, "serve", "--port", "0", "--json") as server:
        url, secret = card_of(server)["url"], (home / "token").read_text().strip()
        told = sent(f"{url}/v1/history", SESSION, secret)
        server.send_signal(signal.SIGKILL)
        server.wait(timeout=PATIENCE)
    with running(home, "serve", "--port", "0", "--json") as server:
        url = card_of(server)["url"]
        status, found = got(f"{url}/v1/history/abc123", secret=secret)
        events = got(f"{url}/v1/timeline?entity_id=FU-061", secret=secret)[1]

    assert isinstance(server, subprocess.Popen)
    assert (status, found["snapshot"]) == (200, SESSION)
    assert [each["id"] for each in found["observations"]] == [told["observation_id"]]
    assert events["total"] == 3
