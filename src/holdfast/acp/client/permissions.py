"""Translates permission requests into our questions, and our answers into their options.

A decision is mapped to an option by the option's kind, and sent by its id.
"""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.acp.client.content import FileEdit
from holdfast.acp.client.lenient_json import read_list, read_name, read_object, read_word
from holdfast.acp.client.tool_calls import CallRequest
from holdfast.domain.approvals import (
    ALLOW_ALWAYS,
    ALLOW_ONCE,
    ONE_BY_ONE,
    Approval,
    ApprovalChoice,
    ApprovalContext,
    ApprovalScope,
    ApprovalState,
    Decision,
    Question,
    Ruling,
    digest_call,
)
from holdfast.domain.ids import ApprovalId
from holdfast.domain.text import visible, visible_json
from holdfast.domain.tools import ToolClass

REJECT_ONCE: Final = "reject_once"
REJECT_ALWAYS: Final = "reject_always"
CHOICES_MOST: Final = 64
_CLASSES: Final[Mapping[str, ToolClass]] = {
    **dict.fromkeys(("read", "search", "think"), ToolClass.READ),
    **dict.fromkeys(("edit", "delete", "move"), ToolClass.WRITE),
    "fetch": ToolClass.EGRESS,
}
# All kinds of the protocol; any other kind is an extension of the agent.
_KINDS: Final = frozenset(_CLASSES) | {"execute", "switch_mode", "other"}
_UNREAD_LONGEST: Final = 16 << 10
# `by` of an answer that a rule gives without asking.
_RULING_CODES: Final[Mapping[Ruling, str]] = {
    Ruling.UNATTENDED: "unattended",
    Ruling.TOO_LARGE: "too_large",
}
# A request without options is denied, because an approval could not be sent to the agent.
NOT_OFFERED: Final = Decision(state=ApprovalState.DENIED, by="option_not_offered")
# The question would show `[secret:name]`, so an approval would cover another call than the agent's.
HOLDS_SECRET: Final = Decision(state=ApprovalState.DENIED, by="managed_secret")


class ApprovalSubject(Struct, frozen=True, kw_only=True):
    """What a question is about, apart from the call: its effect, and how it is displayed.

    `shown` replaces the text of the call; `changes` are displayed in addition to it. `memory` names
    what an approval for the session covers; without it only an identical call.
    """

    tool_class: ToolClass
    shown: str | None = None
    changes: tuple[str, ...] = ()
    path: str | None = None
    memory: str | None = None


def tool_class_of(kind: str | None) -> ToolClass:
    """Return the tool class for an agent's tool kind; an unknown kind counts as a process."""
    return _CLASSES.get(kind or "", ToolClass.PROCESS)


def read_choices(options: object) -> tuple[ApprovalChoice, ...]:
    """Return the options of a request; ignores those without an id or a kind."""
    found = []
    for option in map(read_object, read_list(options)[:CHOICES_MOST]):
        id_, kind = read_name(option.get("optionId")), read_word(option.get("kind"))
        if id_ is not None and kind is not None:
            found.append(
                ApprovalChoice(id=id_, name=read_word(option.get("name")) or id_, kind=kind)
            )
    return tuple(found)


def build_question(
    call: CallRequest,
    choices: tuple[ApprovalChoice, ...],
    subject: ApprovalSubject,
    *,
    folder: str,
    new_id: str,
) -> Question:
    """Build the question about a call, with everything that is known about it."""
    targets = call.paths
    # The class is part of the digest, so that an approval does not carry over to another class.
    about = [subject.tool_class, *targets, *(_format_edit(each) for each in call.edits)]
    digest = digest_call(call.name, call.arguments, folder, about)
    kinds = {each.kind for each in choices}
    is_offered = not choices or bool(kinds & {ALLOW_ALWAYS, ALLOW_ONCE})
    is_for_all = is_offered and subject.tool_class not in ONE_BY_ONE
    # Our own actions are identified by the tool name and need no kind.
    preview = {"kind": call.kind if call.kind in _KINDS else "other"} if choices else {}
    if path := subject.path or next(iter(targets), None):
        preview["path"] = path
    return Question(
        id=ApprovalId(new_id),
        call_id=call.id,
        tool=call.name,
        tool_class=subject.tool_class,
        arguments=call.arguments,
        question=subject.shown or "\n".join([_question_text(call, targets), *subject.changes]),
        digest=digest,
        preview=preview,
        memory=(subject.memory or f"{call.name} {digest[:16]}") if is_for_all else None,
        choices=choices,
    )


def folder_memory(paths: Sequence[str], folder: str) -> str | None:
    """Return the memory key for edits of files in one folder; `None` for several folders.

    Only normalized paths qualify (path traversal); writes do not follow symbolic links.
    """
    is_plain = all(
        path == posixpath.normpath(path) and path.startswith(f"{folder}/") for path in paths
    )
    folders = {posixpath.dirname(path) for path in paths}
    return f"write:{folders.pop()}" if is_plain and len(folders) == 1 else None


def summarize_unasked(question: str) -> str:
    """Shorten a question that was not asked, for storage."""
    if len(question) <= _UNREAD_LONGEST:
        return question
    head = question.partition("\n")[0][:_UNREAD_LONGEST]
    left = len(question.encode(errors="replace")) - len(head.encode(errors="replace"))
    return f"{head}\n[{left} bytes not shown]"


def _question_text(call: CallRequest, targets: Sequence[str]) -> str:
    # Invisible characters are escaped and further lines indented (spoofing of our own lines).
    named = (call.title or call.name, *targets)
    lines = [visible(each).replace("\n", "\n  ") for each in named]
    if call.arguments:
        lines.append(visible_json(call.arguments))
    return "\n".join(dict.fromkeys(lines))


def _format_edit(edit: FileEdit) -> str:
    return msgspec.json.encode([edit.path, edit.old, edit.new]).decode()


def answer_by_rule(how: Ruling, context: ApprovalContext, question: Question) -> Decision:
    """Return the answer of a rule; never widens a one-time approval."""
    ids = {each.kind: each.id for each in reversed(question.choices)}
    by = _RULING_CODES.get(how, f"policy:{context.mode}")
    if how is Ruling.RUN:
        if ALLOW_ONCE in ids or not question.choices:
            return Decision(state=ApprovalState.ALLOWED, by=by)
        if context.is_remembered and ALLOW_ALWAYS in ids:
            # Recorded as a one-time approval: only a user's own answer is remembered.
            return Decision(state=ApprovalState.ALLOWED, by=by, choice=ids[ALLOW_ALWAYS])
    return Decision(state=ApprovalState.DENIED, by=by)


def is_allowed(approval: Approval | Decision) -> bool:
    """Return whether an answer is an approval."""
    return approval.state is ApprovalState.ALLOWED


def permission_outcome(
    choices: Sequence[ApprovalChoice], answer: Approval | Decision
) -> dict[str, Any]:
    """Return the answer in the agent's form: the first option of a matching kind."""
    if answer.choice is not None:
        return _selected_outcome(answer.choice)
    if not is_allowed(answer):
        kinds: tuple[str, ...] = (REJECT_ONCE, REJECT_ALWAYS)
    elif answer.scope is ApprovalScope.SESSION:
        kinds = (ALLOW_ALWAYS, ALLOW_ONCE)
    else:
        kinds = (ALLOW_ONCE,)
    for kind in kinds:
        for choice in choices:
            if choice.kind == kind:
                return _selected_outcome(choice.id)
    return {"outcome": {"outcome": "cancelled"}}


def _selected_outcome(id_: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": id_}}
