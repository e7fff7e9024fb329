"""Errors on the command line: a line for people, a JSON line for programs, an exit code.

Exit codes come from two tables: by error class, and by failure code of a turn.
"""

import errno
import logging
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.domain.errors import (
    Code,
    Conflict,
    Denied,
    HoldfastError,
    Internal,
    Invalid,
    LimitReached,
    NotFound,
    StorageFull,
    Unavailable,
    out_of_memory,
)
from holdfast.domain.events import FailureCode, TurnEnded
from holdfast.domain.sessions import StopReason

log = logging.getLogger(__name__)

FINDINGS: Final = 1
# The shell convention for a program ended by Ctrl-C: 128 plus the signal number.
INTERRUPTED: Final = 130

EXIT_CODES: Final[Mapping[type[HoldfastError], int]] = {
    Invalid: 2,
    Denied: 3,
    NotFound: 4,
    Conflict: 5,
    LimitReached: 6,
    Unavailable: 7,
    StorageFull: 8,
    # EX_SOFTWARE of sysexits.h, distinct from the codes that a caller may act on.
    Internal: 70,
}

FAILURE_CODES: Final[Mapping[FailureCode, int]] = {
    FailureCode.INVALID_REQUEST: 2,
    FailureCode.OUTPUT_INVALID: 2,
    FailureCode.CONTEXT_OVERFLOW: 2,
    FailureCode.CONTENT_FILTER: 2,
    FailureCode.PROVIDER_AUTH: 3,
    FailureCode.INTERRUPTED: 5,
    FailureCode.TURN_LIMIT: 6,
    FailureCode.BUDGET_EXCEEDED: 6,
    FailureCode.PROVIDER_RATE_LIMIT: 6,
    FailureCode.PROVIDER_UNAVAILABLE: 7,
    FailureCode.TOOL_FAILED: 7,
    FailureCode.INTERNAL: 70,
    FailureCode.LOOP_FAILED: 7,
    FailureCode.REPLAY_MISMATCH: 5,
    # Failures of an external agent are temporary, like those of a provider: a retry may work.
    **{code: 7 for code in FailureCode if code.startswith("agent_")},
}

# The exit code of a stop reason when the turn has no failure of its own.
STOP_CODES: Final[Mapping[StopReason, int]] = {
    StopReason.STOP: 0,
    StopReason.LENGTH: 0,
    StopReason.REFUSAL: 2,
    StopReason.ABORTED: INTERRUPTED,
    StopReason.INTERRUPTED: 5,
    StopReason.TURN_LIMIT: 6,
    StopReason.BUDGET: 6,
    StopReason.ERROR: 70,
}


def _disk_full() -> HoldfastError:
    return StorageFull(Code.STORAGE_FULL, "The disk is full; free some space and try again.")


def _system_limit() -> HoldfastError:
    return Unavailable(
        Code.SYSTEM_LIMIT,
        "This process has reached the system's limit of files, threads or processes; "
        "stop some, or raise the limit (`ulimit -n`, `ulimit -u`).",
    )


# Errors of the operating system when a resource is exhausted.
_SYSTEM: Final[Mapping[int, Callable[[], HoldfastError]]] = {
    errno.ENOSPC: _disk_full,
    errno.EDQUOT: _disk_full,
    errno.ENOMEM: out_of_memory,
    errno.EMFILE: _system_limit,
    errno.ENFILE: _system_limit,
}


def exit_code(error: HoldfastError) -> int:
    """Return the exit code of an error's class."""
    return EXIT_CODES[type(error)]


def turn_code(ended: TurnEnded) -> int:
    """Return the exit code of an unattended run from the outcome of its last turn."""
    if ended.failure is not None:
        return FAILURE_CODES[ended.failure.code]
    return STOP_CODES[ended.stop_reason]


def translate_error(error: BaseException) -> HoldfastError:
    """Return any exception as a HoldfastError; the text of an unexpected one is only logged."""
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, MemoryError):
        return out_of_memory()
    if isinstance(error, OSError) and (translate := _SYSTEM.get(error.errno or 0)):
        return translate()
    # Python has no separate exception class for this.
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return _system_limit()
    log.error("unexpected error", exc_info=error)
    return Internal(Code.INTERNAL, "Internal error in Holdfast; see the lines above for details.")
