"""Permission requests as questions of ours, and our answers as options of theirs.

A decision is turned into an option by what the option means, and is answered by its id.
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
    Approval,
    ApprovalAnswer,
    ApprovalChoice,
    ApprovalScope,
    ApprovalState,
    Question,
    digest_of,
)
from holdfast.domain.ids import ApprovalId
from holdfast.domain.text import visible, visible_json
from holdfast.domain.tools import ToolClass
from holdfast.ports import ApprovalContext
from holdfast.services.approval_policy import ONE_BY_ONE, Ruling

REJECT_ONCE: Final = "reject_once"
REJECT_ALWAYS: Final = "reject_always"
CHOICES_MOST: Final = 64
_CLASSES: Final[Mapping[str, ToolClass]] = {
    **dict.fromkeys(("read", "search", "think"), ToolClass.READ),
    **dict.fromkeys(("edit", "delete", "move"), ToolClass.WRITE),
    "fetch": ToolClass.EGRESS,
}
# All that the protocol knows; another word is an agent's own.
_KINDS: Final = frozenset(_CLASSES) | {"execute", "switch_mode", "other"}
_UNREAD_LONGEST: Final = 16 << 10
# Whose answer it is when nobody is asked.
_RULING_CODES: Final[Mapping[Ruling, str]] = {
    Ruling.UNATTENDED: "unattended",
    Ruling.TOO_LARGE: "too_large",
}
# Who asks and offers no answer gets none; whoever is told of a yes could not pass it on.
NOT_OFFERED: Final = ApprovalAnswer(state=ApprovalState.DENIED, by="option_not_offered")


class ApprovalSubject(Struct, frozen=True, kw_only=True):
    """What a question is about, apart from the call: what it touches, and how that is shown.

    `shown` is how, in place of the call's own words; `changes` is what is shown beside them.
    `memory` names what a yes for the whole session would cover; without one it is the very same.
    """

    tool_class: ToolClass
    shown: str | None = None
    changes: tuple[str, ...] = ()
    path: str | None = None
    memory: str | None = None


def tool_class_of(kind: str | None) -> ToolClass:
    """Return what a call touches, by the agent's word for it; what nobody knows may do anything."""
    return _CLASSES.get(kind or "", ToolClass.PROCESS)


def read_choices(options: object) -> tuple[ApprovalChoice, ...]:
    """Return the answers that a request offers; what has no id cannot be answered with."""
    found = []
    for option in map(read_object, read_list(options)[:CHOICES_MOST]):
        id_, kind = read_name(option.get("optionId")), read_word(option.get("kind"))
        if id_ is not None and kind is not None:
            found.append(
                ApprovalChoice(id=id_, name=read_word(option.get("name")) or id_, kind=kind)
            )
    return tuple(found)


def build_question(
    asked: CallRequest,
    choices: tuple[ApprovalChoice, ...],
    subject: ApprovalSubject,
    *,
    folder: str,
    new_id: str,
) -> Question:
    """Return what somebody is asked about a call: all that is known of it."""
    targets = asked.paths
    # With the class: what was allowed as one thing was not allowed as another.
    about = [subject.tool_class, *targets, *(_format_edit(each) for each in asked.edits)]
    digest = digest_of(asked.name, asked.arguments, folder, about)
    kinds = {each.kind for each in choices}
    is_offered = not choices or bool(kinds & {ALLOW_ALWAYS, ALLOW_ONCE})
    is_for_all = is_offered and subject.tool_class not in ONE_BY_ONE
    # What we do ourselves is known by our own name for it.
    preview = {"kind": asked.kind if asked.kind in _KINDS else "other"} if choices else {}
    if path := subject.path or next(iter(targets), None):
        preview["path"] = path
    return Question(
        id=ApprovalId(new_id),
        call_id=asked.id,
        tool=asked.name,
        tool_class=subject.tool_class,
        arguments=asked.arguments,
        question=subject.shown or "\n".join([_question_text(asked, targets), *subject.changes]),
        digest=digest,
        preview=preview,
        memory=(subject.memory or f"{asked.name} {digest[:16]}") if is_for_all else None,
        choices=choices,
    )


def folder_memory(paths: Sequence[str], folder: str) -> str | None:
    """Return the memory of a yes to changing files that all lie in one folder, if they do.

    Nothing is written through links, so a path that is spelled plainly is a real one.
    """
    is_plain = all(
        path == posixpath.normpath(path) and path.startswith(f"{folder}/") for path in paths
    )
    places = {posixpath.dirname(path) for path in paths}
    return f"write:{places.pop()}" if is_plain and len(places) == 1 else None


def summarize_unasked(question: str) -> str:
    """Return what is kept of a question that nobody was asked."""
    if len(question) <= _UNREAD_LONGEST:
        return question
    head = question.partition("\n")[0][:_UNREAD_LONGEST]
    left = len(question.encode(errors="replace")) - len(head.encode(errors="replace"))
    return f"{head}\n[{left} bytes that nobody was shown]"


def _question_text(asked: CallRequest, targets: Sequence[str]) -> str:
    # Nothing that cannot be seen, and further lines moved in: none can pass for one of ours.
    named = (asked.title or asked.name, *targets)
    lines = [visible(each).replace("\n", "\n  ") for each in named]
    if asked.arguments:
        lines.append(visible_json(asked.arguments))
    return "\n".join(dict.fromkeys(lines))


def _format_edit(edit: FileEdit) -> str:
    return msgspec.json.encode([edit.path, edit.old, edit.new]).decode()


def answer_by_rule(how: Ruling, standing: ApprovalContext, question: Question) -> ApprovalAnswer:
    """Return what a rule answers; a yes for once is never widened to more than was meant."""
    ids = {each.kind: each.id for each in reversed(question.choices)}
    by = _RULING_CODES.get(how, f"policy:{standing.mode}")
    if how is Ruling.RUN:
        if ALLOW_ONCE in ids or not question.choices:
            return ApprovalAnswer(state=ApprovalState.ALLOWED, by=by)
        if standing.is_remembered and ALLOW_ALWAYS in ids:
            # For once all the same: what is remembered is what somebody has said, and no echo.
            return ApprovalAnswer(state=ApprovalState.ALLOWED, by=by, choice=ids[ALLOW_ALWAYS])
    return ApprovalAnswer(state=ApprovalState.DENIED, by=by)


def is_allowed(approval: Approval | ApprovalAnswer) -> bool:
    """Tell whether an answer is a yes."""
    return approval.state is ApprovalState.ALLOWED


def permission_outcome(
    choices: Sequence[ApprovalChoice], answer: Approval | ApprovalAnswer
) -> dict[str, Any]:
    """Return the answer as the agent takes it: the first option of the kind that is meant."""
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
