"""A pytest plugin for the session cases of the OpenAI Agents SDK: its sessions become ours.

The run succeeds when exactly the cases in `INSIDE` fail: they reach into connections, locks or
damaged rows of SQLite, which our session has not. Those that state a behaviour beside it are
restated in `openai_cases.py`.

`-p openai_plugin`, with this folder on the path, replaces `agents.SQLiteSession` before any case is
collected. What a case finds in a file of SQLite is a Holdfast beside that file.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import agents
import agents.memory
import agents.memory.sqlite_session

from holdfast import sync
from holdfast.integrations.openai_agents import HoldfastSession

INSIDE = {
    "test_sqlite_session_close_closes_worker_thread_connections",
    "test_sqlite_session_close_retries_quarantined_connection",
    "test_sqlite_session_closed_rejects_empty_add_items",
    "test_sqlite_session_closes_retired_connections_before_the_next_allocation",
    "test_sqlite_session_failed_add_items_releases_write_lock",
    "test_sqlite_session_failed_clear_session_rolls_back",
    "test_sqlite_session_failed_pop_item_releases_write_lock",
    "test_sqlite_session_file_lock_is_shared_across_instances",
    "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows",
    "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows",
    "test_sqlite_session_keeps_connections_of_live_worker_threads",
    "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows",
    "test_sqlite_session_pop_item_skips_corrupt_most_recent",
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome[add]",
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome[clear]",
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome[pop]",
    "test_sqlite_session_reaps_connections_from_exited_worker_threads",
    "test_sqlite_session_rollback_failure_evicts_connection",
}
_FAILED: set[str] = set()
_HOMES: dict[str, Any] = {}
_OPENED = ExitStack()


def home_of(db_path: str | Path) -> Any:
    """Return the Holdfast that stands for a database; each one in memory has its own."""
    name = str(db_path)
    if name == ":memory:":
        name = tempfile.mkdtemp(prefix="holdfast-")
    if name not in _HOMES:
        _HOMES[name] = _OPENED.enter_context(sync.open_holdfast(Path(f"{name}.home")))
    return _HOMES[name]


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


class SQLiteSession(HoldfastSession):
    """A session of ours with the signature of the SDK's own."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: Any = None,
    ) -> None:
        super().__init__(session_id, home_of(db_path), session_settings=session_settings)


for module in (agents, agents.memory, agents.memory.sqlite_session):
    module.SQLiteSession = SQLiteSession
