"""Defaults on the wire."""

from msgspec import Struct

from holdfast.domain.approvals import ApprovalMode


class DefaultsForm(Struct, frozen=True, kw_only=True):
    """The model that answers where none is named, and the loosest approval mode there can be."""

    model: str
    approval: ApprovalMode
