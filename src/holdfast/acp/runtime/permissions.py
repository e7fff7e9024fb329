"""Permission requests as questions of ours, and our answers as options of theirs.

A decision is turned into an option by what the option means, and is answered by its id.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.acp.translate.call_books import Asked
from holdfast.acp.translate.readings import fields, items, name, word
from holdfast.domain.approvals import (
    ALLOW_ALWAYS,
    ALLOW_ONCE,
    Answer,
    Approval,
    ApprovalScope,
    ApprovalState,
    Choice,
    Question,
    digest_of,
)
from holdfast.domain.ids import ApprovalId
from holdfast.domain.tools import ToolClass
from holdfast.ports import Standing
from holdfast.services.policy import ONE_BY_ONE, Ruling

REJECT_ONCE: Final = "reject_once"
REJECT_ALWAYS: Final = "reject_always"
CHOICES_MOST: Final = 64
_CLASSES: Final[Mapping[str, ToolClass]] = {
    **dict.fromkeys(("read", "search", "think"), ToolClass.READ),
    **dict.fromkeys(("edit", "delete", "move"), ToolClass.WRITE),
    "fetch": ToolClass.EGRESS,
}
# Whose answer it is when nobody is asked.
_RULED: Final[Mapping[Ruling, str]] = {
    Ruling.UNATTENDED: "unattended",
    Ruling.TOO_LARGE: "too_large",
}


def class_of(kind: str | None) -> ToolClass:
    """Return what a call touches, by the agent's word for it; what nobody knows may do anything."""
    return _CLASSES.get(kind or "", ToolClass.PROCESS)


def choices_of(options: object) -> tuple[Choice, ...]:
    """Return the answers that a request offers; what has no id cannot be answered with."""
    found = []
    for option in map(fields, items(options)[:CHOICES_MOST]):
        id_, kind = name(option.get("optionId")), word(option.get("kind"))
        if id_ is not None and kind is not None:
            found.append(Choice(id=id_, name=word(option.get("name")) or id_, kind=kind))
    return tuple(found)


def question_of(
    asked: Asked, choices: tuple[Choice, ...], tool_class: ToolClass, *, folder: str, new_id: str
) -> Question:
    """Return what somebody is asked about a call: all that is known of it."""
    targets = [each.path for each in asked.locations]
    digest = digest_of(asked.name, asked.arguments, folder, targets)
    kinds = {each.kind for each in choices}
    is_for_all = tool_class not in ONE_BY_ONE and bool(kinds & {ALLOW_ALWAYS, ALLOW_ONCE})
    preview = {"kind": asked.kind or "other"}
    if targets:
        preview["path"] = targets[0]
    return Question(
        id=ApprovalId(new_id),
        call_id=asked.id,
        tool=asked.name,
        tool_class=tool_class,
        arguments=asked.arguments,
        question=_words(asked, targets),
        digest=digest,
        preview=preview,
        memory=f"{asked.name} {digest[:16]}" if is_for_all else None,
        choices=choices,
    )


def _words(asked: Asked, targets: Sequence[str]) -> str:
    lines = [asked.title or asked.name, *targets]
    if asked.arguments:
        lines.append(msgspec.json.format(msgspec.json.encode(asked.arguments)).decode())
    return "\n".join(dict.fromkeys(lines))


def ruled(how: Ruling, standing: Standing, question: Question) -> Answer:
    """Return what a rule answers; a yes for once is never widened to more than was meant."""
    kinds = {each.kind for each in question.choices}
    by = _RULED.get(how, f"policy:{standing.mode}")
    if how is Ruling.RUN:
        if ALLOW_ONCE in kinds or not question.choices:
            return Answer(state=ApprovalState.ALLOWED, by=by)
        if standing.is_remembered and ALLOW_ALWAYS in kinds:
            return Answer(state=ApprovalState.ALLOWED, by=by, scope=ApprovalScope.SESSION)
    return Answer(state=ApprovalState.DENIED, by=by)


def is_allowed(approval: Approval | Answer) -> bool:
    """Tell whether an answer is a yes."""
    return approval.state is ApprovalState.ALLOWED


def outcome_of(choices: Sequence[Choice], answer: Approval | Answer) -> dict[str, Any]:
    """Return the answer as the agent takes it: the first option of the kind that is meant."""
    if answer.choice is not None:
        return _selected(answer.choice)
    if not is_allowed(answer):
        kinds: tuple[str, ...] = (REJECT_ONCE, REJECT_ALWAYS)
    elif answer.scope is ApprovalScope.SESSION:
        kinds = (ALLOW_ALWAYS, ALLOW_ONCE)
    else:
        kinds = (ALLOW_ONCE,)
    for kind in kinds:
        for choice in choices:
            if choice.kind == kind:
                return _selected(choice.id)
    return {"outcome": {"outcome": "cancelled"}}


def _selected(id_: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": id_}}
