"""A pytest plugin for the runner cases of the OpenAI Agents SDK: their list sessions become ours.

`-p openai_runner_plugin` replaces the doubles of the SDK's own tests before any case is collected.
The run succeeds when exactly those cases fail that fail in this environment with the SDK's own
doubles, too (named in the file of `OWN_FAILURES`), and those in `INSIDE`.
"""

import itertools
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.utils import simple_session

from holdfast import sync
from holdfast.integrations.openai_agents import FRAMEWORK, HoldfastSession

_CASES = (
    "tests/memory/test_openai_responses_compaction_session.py::"
    "TestOpenAIResponsesCompactionSession::test_run_compaction_"
)
# They change the list inside the double.
INSIDE = {
    f"{_CASES}{name}"
    for name in (
        "does_not_restore_when_clear_fails_without_mutation",
        "reraises_replacement_error_when_restore_fails[False]",
        "reraises_replacement_error_when_restore_fails[True]",
        "restores_full_history_when_session_limit_applies[3]",
        "restores_full_history_when_session_limit_applies[None]",
        "restores_history_when_cancelled_again_during_restore[3]",
        "restores_history_when_cancelled_again_during_restore[None]",
        "restores_history_when_clear_fails_after_mutation",
        "restores_history_when_clear_is_cancelled_after_mutation[3]",
        "restores_history_when_clear_is_cancelled_after_mutation[None]",
        "restores_history_when_replacement_add_fails",
        "restores_history_when_replacement_add_is_cancelled",
    )
}
_FAILED: set[str] = set()
_OPENED = ExitStack()
_NUMBERS = itertools.count()
_HF = _OPENED.enter_context(sync.open_holdfast(Path(tempfile.mkdtemp()) / "home"))


class SimpleListSession(HoldfastSession):
    """A session of ours with the signature of the double, and a record of its own each time."""

    def __init__(self, session_id: str = "test", history: list[Any] | None = None) -> None:
        super().__init__(session_id, _HF)
        self.session_settings = None
        self._native = f"{next(_NUMBERS)}-{session_id}"
        self._ignore_ids_for_matching = False
        if history:
            self.bridge.run_sync(lambda: self.add_items(list(history)))

    async def _open_session(self) -> Any:
        if self._known is None:
            sessions = self.bridge.parts.sessions
            self._known = await sessions.open(FRAMEWORK, self._native, agent="cases")
        return self._known

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items; the double returns none for a limit below zero."""
        return await super().get_items(None if limit is None else max(limit, 0))

    @property
    def saved_items(self) -> list[Any]:
        """The items, for cases that look into the double."""
        return self.bridge.run_sync(lambda: HoldfastSession.get_items(self))

    _items = saved_items


class CountingSession(SimpleListSession):
    """Counts how often an item is taken back."""

    def __init__(self, session_id: str = "test", history: list[Any] | None = None) -> None:
        super().__init__(session_id, history)
        self.pop_calls = 0

    async def pop_item(self) -> Any:
        """Take back an item."""
        self.pop_calls += 1
        return await super().pop_item()


simple_session.SimpleListSession = SimpleListSession
simple_session.CountingSession = CountingSession


def pytest_runtest_logreport(report: Any) -> None:
    """Note the case if it failed."""
    if report.failed:
        _FAILED.add(report.nodeid)


def pytest_sessionfinish(session: Any) -> None:
    """Succeed if those cases failed that have to, and no others."""
    own = set(Path(os.environ["OWN_FAILURES"]).read_text("utf-8").splitlines())
    surprises = sorted(_FAILED ^ (own | INSIDE))
    session.exitstatus = 1 if surprises else 0
    print(f"\n{session.testscollected - len(_FAILED)} of {session.testscollected} passed")
    for name in surprises:
        print(f"{'fails' if name in _FAILED else 'passes or is gone'}: {name}")


def pytest_unconfigure() -> None:
    """Close the Holdfast while threads can still be started."""
    _OPENED.close()
