"""`write_file` and `edit_file`: planned as one change, shown as a diff, done at once or not at all.

What was there before is put on the session's shelf first, so that every change can be undone.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct

from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.ports import Asked, Workplace
from holdfast.tools.diffs import addition, diff
from holdfast.tools.floors import folded_path, is_sensitive
from holdfast.tools.opening import LARGEST, Doorkeeper
from holdfast.tools.reading import FilePath, is_binary
from holdfast.tools.replacing import Before, append, before_change, changed, replace
from holdfast.tools.scope import Scope
from holdfast.tools.threads import in_thread
from holdfast.tools.tool import Aim, Tool, ToolTrouble
from holdfast.tools.troubles import binary, not_found, too_large
from holdfast.tools.walking import Spot
from holdfast.tools.wording import visible

_ABSENT: Final = "absent"
# A tree that is deeper than programs can remove is no favour to anybody.
_FOLDERS_MOST: Final = 32


class WriteFileArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `write_file` takes."""

    path: FilePath
    content: str
    mode: Literal["replace", "create", "append"] = "replace"
    create_dirs: bool = False


class EditFileArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `edit_file` takes."""

    path: FilePath
    old: Annotated[str, Meta(min_length=1)]
    new: str
    occurrences: Annotated[int, Meta(ge=1)] = 1


A = TypeVar("A", WriteFileArguments, EditFileArguments)


class Change(Struct, frozen=True, kw_only=True):
    """What a call would do to a file."""

    resolved: str
    tool_class: ToolClass
    before: Before | None
    # All that the file holds afterwards; of an appending call only what it adds.
    content: bytes
    is_appending: bool = False

    @property
    def replaced(self) -> str:
        """Return what stands for the content that was there."""
        return _ABSENT if self.before is None else hashlib.sha256(self.before.content).hexdigest()

    def aim(self, path: str) -> Aim:
        """Return the change as it is judged and asked about."""
        memory = f"write:{self.resolved.rpartition('/')[0] or '/'}"
        return Aim(
            tool_class=self.tool_class,
            targets=(self.resolved, self.replaced),
            question=self._question(),
            preview={"path": path},
            memory=memory if self.tool_class is ToolClass.WRITE else None,
        )

    def _question(self) -> str:
        path = visible(self.resolved).replace("\n", "\\u000a")
        if self.before is None:
            return f"{path} (new file)\n{addition(self.content)}"
        if self.is_appending:
            return f"{path} (added at the end)\n{addition(self.content)}"
        if is_binary(self.before.content):
            size = len(self.before.content)
            return f"{path} (replaces {size} bytes that are not text)\n{addition(self.content)}"
        return f"{path} (change)\n{diff(self.before.content, self.content)}"


def writing_tools(keeper: Doorkeeper) -> tuple[Tool[Any], ...]:
    """Return `write_file` and `edit_file`."""
    writing = _Changing(keeper, _written, _told_write)
    editing = _Changing(keeper, _edited, _told_edit)
    return (
        Tool(
            name="write_file",
            description=(
                "Write a text file: replace it or make it (replace), make it only if it is not"
                " there (create), or add to its end (append). create_dirs makes missing"
                " directories. `undo` in the result names what was there before."
            ),
            arguments=WriteFileArguments,
            effect=lambda given: Effect.UNSAFE if given.mode == "append" else Effect.IDEMPOTENT,
            plan=writing.plan,
            act=writing.act,
        ),
        Tool(
            name="edit_file",
            description=(
                "Replace an exact piece of text in a file. It must occur exactly `occurrences`"
                " times (once, if not said), otherwise nothing is changed."
            ),
            arguments=EditFileArguments,
            effect=lambda _: Effect.UNSAFE,
            plan=editing.plan,
            act=editing.act,
        ),
    )


Planner = Callable[[A, Spot, Before | None], bytes]
Teller = Callable[[A, Change], dict[str, Any]]


class _Changing:
    def __init__(self, keeper: Doorkeeper, plan: Planner[Any], tell: Teller[Any]) -> None:
        self._keeper = keeper
        self._content = plan
        self._tell = tell

    async def plan(self, place: Workplace, arguments: Any) -> Aim:
        return await in_thread(partial(self._aim, place, arguments))

    async def act(self, place: Workplace, arguments: Any, _: Asked) -> dict[str, Any]:
        change = await in_thread(partial(self._look, place, arguments))
        # Kept before anything is touched; what has changed in between is found below.
        undo = None if change.before is None else await place.shelf.keep(change.before.content)
        await in_thread(partial(self._do, place, arguments, change))
        return self._tell(arguments, change) | {"undo": undo}

    def _aim(self, place: Workplace, arguments: Any, stop: Event) -> Aim:
        return self._look(place, arguments, stop).aim(arguments.path)

    def _look(self, place: Workplace, arguments: Any, _: Event) -> Change:
        scope = self._keeper.scope(place)
        with self._keeper.way_to_change(scope, arguments.path) as spot:
            return self._change(scope, spot, arguments)

    def _do(self, place: Workplace, arguments: Any, seen: Change, stop: Event) -> None:
        scope = self._keeper.scope(place)
        with self._keeper.way_to_change(scope, arguments.path) as spot:
            change = self._change(scope, spot, arguments)
            if (change.resolved, change.replaced) != (seen.resolved, seen.replaced):
                raise changed(arguments.path)
            if change.is_appending:
                append(self._keeper, scope, spot, change.before, change.content)
            else:
                replace(self._keeper, spot, change.before, change.content, stop)

    def _change(self, scope: Scope, spot: Spot, arguments: Any) -> Change:
        before = before_change(self._keeper, scope, spot)
        content = self._content(arguments, spot, before)
        if len(content) > LARGEST:
            raise too_large(spot.path, LARGEST)
        return Change(
            resolved=_plain("/" + "/".join(spot.resolved())),
            tool_class=_class_of(spot),
            before=before,
            content=content,
            is_appending=getattr(arguments, "mode", "") == "append",
        )


def _written(arguments: WriteFileArguments, spot: Spot, before: Before | None) -> bytes:
    if arguments.mode == "create" and before is not None:
        raise ToolTrouble(ResultCode.EXISTS, f"{spot.path} is there already.")
    if spot.missing and not arguments.create_dirs:
        raise ToolTrouble(
            ResultCode.NOT_FOUND,
            f"The directory of {spot.path} is not there; create_dirs makes it.",
        )
    if len(spot.missing) > _FOLDERS_MOST:
        raise ToolTrouble(
            ResultCode.INVALID_ARGUMENTS, f"At most {_FOLDERS_MOST} directories are made at once."
        )
    return arguments.content.encode()


def _edited(arguments: EditFileArguments, spot: Spot, before: Before | None) -> bytes:
    if before is None:
        raise not_found(spot.path)
    if is_binary(before.content):
        raise binary(spot.path)
    old, new = arguments.old.encode(), arguments.new.encode()
    found = before.content.count(old)
    if not found:
        raise ToolTrouble(ResultCode.NO_MATCH, f"{spot.path} does not contain the text.")
    if found != arguments.occurrences:
        raise ToolTrouble(
            ResultCode.AMBIGUOUS_MATCH,
            f"{spot.path} contains the text {found} times, not {arguments.occurrences}.",
        )
    return before.content.replace(old, new)


def _told_write(arguments: WriteFileArguments, change: Change) -> dict[str, Any]:
    return {
        "path": arguments.path,
        "bytes_written": len(change.content),
        "created": change.before is None,
    }


def _told_edit(arguments: EditFileArguments, _: Change) -> dict[str, Any]:
    return {"path": arguments.path, "replaced": arguments.occurrences}


def _class_of(spot: Spot) -> ToolClass:
    if any(is_sensitive(folded_path(names)) for names in spot.judged()):
        return ToolClass.SENSITIVE_WRITE
    return ToolClass.WRITE


def _plain(path: str) -> str:
    """Return a path as text, also where a directory above has a name that is none."""
    return path.encode("utf-8", "backslashreplace").decode()
