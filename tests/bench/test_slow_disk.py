"""A slower disk is slow for every program that is measured on it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.slow_disk import measured_slowly, slow_syncs
from tests.marks import skip_compiler

SYNCED = """
import os, sys, time
with open(sys.argv[1], "wb") as file:
    started = time.perf_counter()
    os.fsync(file.fileno())
    os.fdatasync(file.fileno())
    print(time.perf_counter() - started)
"""


@pytest.mark.slow
def test_a_sync_takes_as_much_longer_as_was_asked_for(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        skip_compiler()
    slow = slow_syncs(compiler, tmp_path, 150)

    command = [sys.executable, "-c", SYNCED, str(tmp_path / "file")]
    told = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | slow
    )

    assert float(told.stdout) >= 0.3


def test_without_a_compiler_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)

    code = measured_slowly(1, [])

    assert (code, "install gcc" in capsys.readouterr().err) == (2, True)
