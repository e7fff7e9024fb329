"""A pytest plugin for the store cases of the Claude Agent SDK: its store in memory becomes ours.

`-p claude_plugin`, with this folder on the path, replaces `claude_agent_sdk.InMemorySessionStore`
before any case is collected; every store has a Holdfast of its own. The run succeeds when exactly
the cases in `INSIDE` fail: they count the turns of an event loop, of which a disk needs more.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import claude_agent_sdk
from claude_agent_sdk._internal import session_store

from holdfast import SessionQuery, sync
from holdfast.integrations.claude_agent_sdk import HoldfastSessionStore

_CASE = "TestListSessionsFromStore::test_load_concurrency_is_bounded"
INSIDE = {f"{_CASE}[{backend}]" for backend in ("asyncio", "trio")}
_FAILED: set[str] = set()
_OPENED = ExitStack()


class InMemorySessionStore(HoldfastSessionStore):
    """A store of ours with the helpers for tests that the SDK's own has."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="holdfast-")
        self._hf = _OPENED.enter_context(sync.open_holdfast(Path(folder) / "home"))
        super().__init__(self._hf)

    def get_entries(self, key: Any) -> list[Any]:
        """Return the entries of a transcript."""
        return self.bridge.run_sync(lambda: self.load(key)) or []

    @property
    def size(self) -> int:
        """The number of sessions, without those of subagents."""
        found = self._hf.sessions.list(SessionQuery(owner=self._hf.owner)).items
        return sum("parent" not in session.metadata for session in found)


claude_agent_sdk.InMemorySessionStore = InMemorySessionStore
session_store.InMemorySessionStore = InMemorySessionStore


def pytest_runtest_logreport(report: Any) -> None:
    """Note the case if it failed."""
    if report.failed:
        _FAILED.add(report.nodeid.partition("::")[2])


def pytest_sessionfinish(session: Any) -> None:
    """Succeed if those cases failed that have to, and no others."""
    surprises = sorted(_FAILED ^ INSIDE)
    session.exitstatus = 1 if surprises else 0
    print(f"\n{session.testscollected - len(_FAILED)} of {session.testscollected} passed")
    for name in surprises:
        print(f"{'fails' if name in _FAILED else 'passes or is gone'}: {name}")


def pytest_unconfigure() -> None:
    """Close every Holdfast while threads can still be started."""
    _OPENED.close()
