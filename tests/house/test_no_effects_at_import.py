"""Holds that importing runs nothing: no process, no socket, no file written, no thread.

What a package does when it is installed is the other half, so none may bring a `.pth` file.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.house.source import modules
from tests.house.test_no_addresses import versions

WATCHER = r"""
import importlib, json, os, sys, threading

EFFECTS = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.",
    "socket.", "os.mkdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "os.putenv", "os.kill", "shutil.", "tempfile.", "sqlite3.connect",
    "urllib.Request", "ftplib.", "http.client.", "webbrowser.open",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
seen = []

def watch(event, arguments):
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if writes or event.startswith(EFFECTS):
        seen.append(f"{event} {arguments!r}"[:200])

names = json.loads(sys.argv[1])
sys.addaudithook(watch)
for name in names:
    importlib.import_module(name)
    seen += [f"thread {each.name}" for each in threading.enumerate()[1:]]
    if seen:
        seen.insert(0, name)
        break
print(json.dumps(seen))
"""


# They import a package that only an environment of its own has; `make interop` runs them there.
OF_FRAMEWORKS = (
    "integrations/claude_agent_sdk.py",
    "integrations/langgraph.py",
    "integrations/langgraph_calls.py",
    "integrations/openai_agents.py",
)


def test_importing_every_module_has_no_effect(tmp_path: Path) -> None:
    left_out = ("__main__.py", *OF_FRAMEWORKS)
    names = [dotted(each.name) for each in modules() if not each.name.endswith(left_out)]

    assert effects(names, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "effect",
    [
        "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])",
        "import socket; socket.socket().close()",
        "open('left.txt', 'w').close()",
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    ],
)
def test_an_effect_at_import_is_found(tmp_path: Path, effect: str) -> None:
    (tmp_path / "guilty.py").write_text(effect, "utf-8")

    assert effects(["guilty"], tmp_path)[:1] == ["guilty"]


def test_no_package_we_run_on_hooks_into_the_start_of_python() -> None:
    hooked = []
    for name in versions("requirements.lock"):
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            # Locked for another system or an older Python.
            continue
        hooked += [f"{name}: {file}" for file in files if file.suffix == ".pth"]

    assert hooked == []


def dotted(name: str) -> str:
    """Return the import name of a source file."""
    return f"holdfast.{name.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")


def effects(names: list[str], folder: Path) -> list[str]:
    """Import modules in a fresh process and return the first that did something, and what."""
    run = subprocess.run(
        [sys.executable, "-B", "-c", WATCHER, json.dumps(names)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told: list[str] = json.loads(run.stdout)
    return told
