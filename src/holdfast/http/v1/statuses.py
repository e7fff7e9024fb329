"""The four words of `/v1` for where a session stands."""

from typing import Literal

from holdfast.domain.sessions import Session, SessionState, Status, StopReason

StatusWord = Literal["pending", "running", "completed", "failed"]


def status_word(session: Session | SessionState) -> StatusWord:
    """Return the word for where a session stands."""
    match session.status:
        case Status.PENDING:
            return "pending"
        case Status.RUNNING:
            return "running"
        case Status.FAILED:
            return "failed"
        case Status.IDLE if session.last_stop is StopReason.ERROR:
            return "failed"
        case _:
            return "completed"
