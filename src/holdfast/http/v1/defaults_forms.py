"""Defaults on the wire."""

from msgspec import Struct

from holdfast.domain.approvals import ApprovalMode


class DefaultsForm(Struct, frozen=True, kw_only=True):
    """What answers and is asked about where nobody says, and the tools that agents can be given."""

    model: str
    approval: ApprovalMode
    tools: tuple[str, ...] = ()
