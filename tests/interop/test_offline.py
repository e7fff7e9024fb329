"""Leaving the network: with a network of our own, else with proxies that lead nowhere."""

import json
import subprocess
import sys

import pytest

from tests.interop import offline
from tests.interop.installing import ROOT

PROGRAM = """
import json, socket
from tests.interop.offline import leave_the_network

variables = leave_the_network()
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    probe.connect(("192.0.2.1", 9))
    is_cut_off = False
except OSError:
    is_cut_off = True
print(json.dumps([variables, is_cut_off]))
"""


def test_nothing_but_loopback_is_left_or_every_request_goes_astray() -> None:
    # In a process of its own: what has left the network cannot come back.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    variables, is_cut_off = json.loads(done.stdout)
    assert is_cut_off or variables["HTTPS_PROXY"] == "http://127.0.0.1:9"


def test_without_the_rights_for_it_proxies_lead_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "_unshared", lambda: False)

    variables = offline.leave_the_network()

    assert {variables[name] for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY")} == {
        "http://127.0.0.1:9"
    }
    assert variables["NO_PROXY"] == "127.0.0.1,localhost"
