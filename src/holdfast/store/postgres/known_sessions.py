"""Run work on the last known state of a session, without a query.

Usually one process writes to a session, and it has made the last commit. Work that needs only the
state, and appends one commit, then is that commit, which the store refuses if the state is
outdated. All other work runs in a transaction, and so does work that fails here: nothing is
returned or raised on the basis of a state that was not compared with the stored one.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar, cast

from holdfast.domain.commits import SessionCommit
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Tx

T = TypeVar("T")

# Limit; each state takes about 1 kB.
_MOST: Final = 4_096


class _UnknownError(BaseException):
    """Work needs a transaction; a BaseException, so that work cannot catch it."""


class KnownSessions:
    """States as last written by this process, or as they will be after queued commits."""

    def __init__(self) -> None:
        self._states: dict[SessionKey, SessionState] = {}
        self._keys: dict[tuple[Owner, SessionId], SessionKey] = {}

    def keep(self, state: SessionState) -> None:
        """Remember a state, unless other statements than commits may change it as well."""
        self.forget(state.key)
        # The lease of a holder is extended, and a fork may be detached from its parent.
        if state.holder is not None or state.inherited:
            return
        if len(self._states) >= _MOST:
            self.forget(next(iter(self._states)))
        self._states[state.key] = state
        self._keys[state.owner, state.session_id] = state.key

    def forget(self, key: SessionKey) -> None:
        """Remove a state, which may be outdated."""
        state = self._states.pop(key, None)
        if state is not None:
            del self._keys[state.owner, state.session_id]

    def try_work(
        self, work: Callable[[Tx], Coroutine[Any, Any, T]]
    ) -> tuple[T, SessionCommit] | None:
        """Run work; return its result and its commit, or None if it needs a transaction."""
        attempt = _Attempt(self._states, self._keys)
        running = work(cast("Tx", attempt))
        try:
            running.send(None)
        except StopIteration as done:
            return (done.value, attempt.commits[0]) if len(attempt.commits) == 1 else None
        except (Exception, _UnknownError):  # noqa: BLE001 — raised again in the transaction
            return None
        running.close()
        return None


class _Attempt:
    """A transaction, and its table of sessions, of which only the known states can be read."""

    def __init__(
        self,
        states: dict[SessionKey, SessionState],
        keys: dict[tuple[Owner, SessionId], SessionKey],
    ) -> None:
        self._states = states
        self._keys = keys
        self.commits: list[SessionCommit] = []
        self.sessions = self

    def __getattr__(self, name: str) -> NoReturn:
        raise _UnknownError

    async def head(self, owner: Owner, session_id: SessionId) -> SessionState:
        return await self.head_by_key(self._keys.get((owner, session_id), SessionKey(0)))

    async def head_by_key(self, key: SessionKey) -> SessionState:
        # After a commit the state is another one, and a second session would need both locked.
        if self.commits or key not in self._states:
            raise _UnknownError
        return self._states[key]

    async def append(self, commit: SessionCommit) -> None:
        self.commits.append(commit)
