"""Workers, what they run, and what they are given to do."""

from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.calls import Call
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import AgentId, CallId, Owner, SessionId
from holdfast.domain.text import require_text
from holdfast.domain.tools import ToolSpec

# A worker that was not heard of for this time is gone.
WORKER_LEASE: Final = timedelta(seconds=30)
# How long the store knows what a worker had that is gone.
WORKER_KEPT: Final = timedelta(days=30)
# How long a call that was offered to a worker is not offered to another one.
OFFER_LEASE: Final = timedelta(seconds=10)
CLAIM_SECONDS: Final = 15.0
CLAIM_SHORTEST: Final = 5.0
CLAIM_LONGEST: Final = 300.0
# After so many attempts whose worker died the call fails.
ATTEMPTS_MOST: Final = 3
WAIT_LONGEST: Final = 25.0
WORK_MOST: Final = 64
TOOLS_MOST: Final = 256
NAME_LONGEST: Final = 255
_FUNCTION: Final = "tool:"


class WorkerTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that a worker runs, of some sessions or of all."""

    name: str
    sessions: tuple[SessionId, ...] = ()


class Worker(Struct, frozen=True, kw_only=True):
    """A process that runs calls or turns, until it is not heard of any more.

    `holder` identifies a process that plays turns, so that its death can be proven.
    """

    id: str
    owner: Owner
    name: str
    capabilities: tuple[str, ...]
    until: datetime
    tools: tuple[WorkerTool, ...] = ()
    agents: tuple[AgentId, ...] = ()
    holder: str | None = None

    @property
    def functions(self) -> tuple[str, ...]:
        """Return the names of the functions of a process that plays turns."""
        names = (
            each.removeprefix(_FUNCTION) for each in self.capabilities if each.startswith(_FUNCTION)
        )
        return () if self.holder is None else tuple(names)


class WorkerRequest(Struct, frozen=True, kw_only=True):
    """What a worker says about itself.

    A tool with parameters is compared with what agents define; `update` stores it with them.
    """

    name: str
    tools: tuple[ToolSpec, ...]
    # Sessions that have a tool of their own, by its name; without them it is for all.
    sessions: dict[str, tuple[SessionId, ...]] = {}
    agents: tuple[str, ...] = ()
    update: bool = False

    def __post_init__(self) -> None:
        require_text(self.name, field="name", shortest=1, longest=NAME_LONGEST)
        if not 0 < len(self.tools) <= TOOLS_MOST:
            text = f"A worker needs at least one tool, and may have {TOOLS_MOST}."
            raise Invalid(Code.INVALID_INPUT, text, {"field": "tools"})


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """A claim on a call; repeating it with the same id changes nothing."""

    claim: str
    worker: str = "a client"
    lease_s: float = CLAIM_SECONDS

    def __post_init__(self) -> None:
        require_text(self.worker, field="worker", shortest=1, longest=NAME_LONGEST)
        if not CLAIM_SHORTEST <= self.lease_s <= CLAIM_LONGEST:
            text = f"lease_s must be from {CLAIM_SHORTEST:.0f} to {CLAIM_LONGEST:.0f}."
            raise Invalid(Code.INVALID_INPUT, text, {"field": "lease_s"})


class OfferedCall(Struct, frozen=True, kw_only=True):
    """A call for a worker; it must be claimed before it is run, unless it has a claim already."""

    call: Call
    claim: str | None = None


class ClaimExtension(Struct, frozen=True, kw_only=True):
    """Until when a claim is extended; `is_cancelled` means that the call has ended meanwhile."""

    until: datetime
    is_cancelled: bool = False


class ClaimsExtension(Struct, frozen=True, kw_only=True):
    """What became of the claims of a worker: those that are lost, and calls that have ended."""

    until: datetime
    lost: tuple[str, ...] = ()
    cancelled: tuple[CallId, ...] = ()


class Work(Struct, frozen=True, kw_only=True):
    """What a worker is to do, and which of its calls have ended or are not its own any more."""

    calls: tuple[OfferedCall, ...] = ()
    cancelled: tuple[CallId, ...] = ()
    lost: tuple[str, ...] = ()


def find_difference(stored: Any, given: Any, path: str = "$") -> str | None:
    """Return the path of the first difference between two JSON values; `None` if equal."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in sorted({*stored, *given}):
            below = f"{path}.{key}"
            if (key in stored) != (key in given):
                return below
            if found := find_difference(stored[key], given[key], below):
                return found
        return None
    return None if stored == given and type(stored) is type(given) else path
