"""Plans of somebody else's agent: a whole list each time, and only a changed one counts."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.acp.translate.readings import fields, items, word
from holdfast.domain.messages import Message, Plan, PlanStep

# More than anybody reads; a plan is a row, and a row has to be shown.
STEPS_MOST: Final = 500
_TEXT_LONGEST: Final = 4_096
_PRIORITIES: Final = frozenset({"high", "medium", "low"})
_STATUSES: Final = frozenset({"pending", "in_progress", "completed"})

Steps = tuple[PlanStep, ...]


def steps_of(update: Mapping[str, Any]) -> Steps | None:
    """Return the steps of a plan, those that say something; nothing if it is no list."""
    entries = update.get("entries")
    if not isinstance(entries, list):
        return None
    return tuple(step for entry in items(entries)[:STEPS_MOST] if (step := _step(fields(entry))))


def last_plan(history: Iterable[Message]) -> Steps:
    """Return the newest plan of a conversation; an empty one if there is none."""
    newest: Steps = ()
    for row in history:
        for part in row.parts:
            if isinstance(part, Plan):
                newest = part.steps
    return newest


def _step(entry: Mapping[str, Any]) -> PlanStep | None:
    said = word(entry.get("content"), longest=_TEXT_LONGEST)
    if said is None:
        return None
    return PlanStep(
        text=said,
        priority=_one_of(_PRIORITIES, entry.get("priority"), "medium"),
        status=_one_of(_STATUSES, entry.get("status"), "pending"),
    )


def _one_of(words: frozenset[str], value: object, otherwise: str) -> str:
    # By type first: what came from outside may be something that no set can be asked for.
    return value if isinstance(value, str) and value in words else otherwise
