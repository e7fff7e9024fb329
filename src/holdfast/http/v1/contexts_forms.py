"""Workspaces on the wire."""

import msgspec
from msgspec import Struct

from holdfast.domain.sessions import Selection, SessionContext
from holdfast.domain.tools import FsTier


class SelectionForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Lines of a file that the person has marked."""

    file: str
    start_line: int
    end_line: int


class ContextForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The workspace a session runs against."""

    working_dir: str
    active_file: str | None = None
    selection: SelectionForm | None = None
    git_ref: str | None = None
    fs_scope_tier: FsTier = FsTier.SANDBOXED
    variables: dict[str, str] = {}


def context_form(context: SessionContext) -> ContextForm:
    """Return a workspace as it is shown."""
    fields = msgspec.structs.asdict(context)
    marked = context.selection
    fields["selection"] = marked and SelectionForm(**msgspec.structs.asdict(marked))
    return ContextForm(**fields)


def context_of(form: ContextForm) -> SessionContext:
    """Return the workspace that a form tells of."""
    fields = msgspec.structs.asdict(form)
    marked = form.selection
    fields["selection"] = marked and Selection(**msgspec.structs.asdict(marked))
    return SessionContext(**fields)
