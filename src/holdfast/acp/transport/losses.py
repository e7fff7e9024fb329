"""How a conversation can fail: the other side says no, or is not there any more."""

from typing import Literal, TypeAlias

from holdfast.acp.transport.framing import RpcError

LossReason: TypeAlias = Literal["closed", "ended", "exited", "stuck", "noise"]


class Refused(Exception):  # noqa: N818 — it says what is, not what went wrong
    """An error reply: theirs to our request, or, raised by a handler, ours to theirs."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(f"{error.code} {error.message}")
        self.error = error


class Lost(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The other side is gone.

    `closed` by us, `ended` because it closed its end of a stream, `exited` with its process,
    `stuck` because it reads nothing, `noise` because it speaks something else.
    """

    def __init__(self, reason: LossReason) -> None:
        super().__init__(reason)
        self.reason: LossReason = reason
