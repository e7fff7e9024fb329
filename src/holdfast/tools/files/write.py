"""`write_file` and `edit_file`: planned as one change, shown as a diff, done at once or not at all.

A change is noted in the scratch folder before it is made, so that a repeated call can tell its own
work. The writing itself is `replace.py`.

"""

import hashlib
import os
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace as replace_field

from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports import RequestedCall, ToolWorkspace
from holdfast.process.cancellation import in_thread
from holdfast.tools.files.access import LARGEST, Doorkeeper
from holdfast.tools.files.changes import Change, class_of, resolved_of
from holdfast.tools.files.errors import binary, not_found, too_large
from holdfast.tools.files.path_walk import Spot
from holdfast.tools.files.read import FilePath, is_binary
from holdfast.tools.files.replace import (
    Before,
    Draft,
    append,
    before_change,
    changed,
    replace,
    tidy,
)
from holdfast.tools.files.scope import Scope
from holdfast.tools.tool import Aim, Tool, ToolTrouble

_LARGEST: Final = 4096


class Attempt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last change that a session has begun.

    `work` stands for a file and all that it holds afterwards, `before` is the handle of what it
    held until then.
    """

    call: str
    work: str
    before: str | None


def call_of(asked: RequestedCall) -> str:
    """Return what a call is known by, however often it is made."""
    return hashlib.sha256(f"{asked.name} {asked.idempotency_key}".encode()).hexdigest()


def work_of(resolved: str, after: bytes) -> str:
    """Return what no other file and no other content has."""
    return hashlib.sha256(resolved.encode() + b"\x00" + after).hexdigest()


def note(scratch: str, attempt: Attempt) -> None:
    """Write down what is about to be done; it is on disk when this returns.

    Only the last one is kept, because the calls of a session run one after the other.
    """
    try:
        _write(_path(scratch), msgspec.json.encode(attempt))
    except OSError as error:
        raise ToolTrouble(
            ResultCode.FAILED, "What is about to be done cannot be noted, so it was not done."
        ) from error


def noted(scratch: str, call: str) -> Attempt | None:
    """Return the last change that was begun, if it was this call's."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(_path(scratch), flags), "rb") as file:
            found = msgspec.json.decode(file.read(_LARGEST), type=Attempt)
    except (OSError, msgspec.DecodeError):
        # Not there, or not whole: then nothing was begun after it.
        return None
    return found if found.call == call else None


def _write(path: str, content: bytes) -> None:
    written = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(written, flags, 0o600), "wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
    os.rename(written, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _path(scratch: str) -> str:
    # Beside the folder and not in it: that one is the agent's.
    return f"{os.path.realpath(scratch)}.attempt"


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
            effect=_effect,
            plan=writing.plan,
            act=writing.act,
            again=writing.again,
        ),
        Tool(
            name="edit_file",
            description=(
                "Replace an exact piece of text in a file. It must occur exactly `occurrences`"
                " times (once, if not said), otherwise nothing is changed."
            ),
            arguments=EditFileArguments,
            effect=_effect,
            plan=editing.plan,
            act=editing.act,
        ),
    )


class _Call(NamedTuple):
    """Where and for whom something is changed."""

    place: ToolWorkspace
    arguments: Any
    id: str

    @property
    def is_repeatable(self) -> bool:
        """Tell whether the call is made again by itself; every other one somebody has to want."""
        return _effect(self.arguments) is Effect.IDEMPOTENT


Planner = Callable[[A, Spot, Before | None], bytes]
Teller = Callable[[A, Change], dict[str, Any]]


class _Changing:
    def __init__(self, keeper: Doorkeeper, plan: Planner[Any], tell: Teller[Any]) -> None:
        self._keeper = keeper
        self._content = plan
        self._tell = tell

    async def plan(self, place: ToolWorkspace, arguments: Any) -> Aim:
        return await in_thread(partial(self._aim, place, arguments))

    async def act(
        self, place: ToolWorkspace, arguments: Any, asked: RequestedCall
    ) -> dict[str, Any]:
        call = _Call(place, arguments, call_of(asked))
        change = await self._done_already(call)
        if change is None:
            change = await in_thread(partial(self._look, place, arguments))
            # Kept before anything is touched; what has changed in between is found below.
            if change.before is not None:
                undo = await place.shelf.keep(change.before.content)
                change = replace_field(change, undo=undo)
            await in_thread(partial(self._do, call, change))
        return self._tell(arguments, change) | {"undo": change.undo}

    async def again(self, place: ToolWorkspace, arguments: Any, asked: RequestedCall) -> Aim | None:
        """Return what an attempt that was cut off aimed at, if its work is there."""
        change = await self._done_already(_Call(place, arguments, call_of(asked)))
        return None if change is None else change.aim(arguments.path)

    async def _done_already(self, call: "_Call") -> Change | None:
        if not call.is_repeatable:
            return None
        attempt = await in_thread(lambda _: noted(call.place.scratch, call.id))
        if attempt is None:
            return None
        content = None
        if attempt.before is not None:
            kept = await call.place.shelf.read(attempt.before)
            if kept is None:
                return None
            content = kept.content
        try:
            return await in_thread(partial(self._recognised, call, attempt, content))
        except ToolTrouble:
            # Whatever is wrong is said by the plan, as it is for every other call.
            return None

    def _recognised(
        self, call: "_Call", attempt: Attempt, content: bytes | None, _: Event
    ) -> Change | None:
        """Return the change that an attempt has made, if the file is as it left it."""
        scope = self._keeper.scope(call.place)
        with self._keeper.way_to_change(scope, call.arguments.path) as spot:
            # A second name of the file, which it had while it was put in its place.
            tidy(spot, call.id)
            found = before_change(self._keeper, scope, spot)
            if found is None or attempt.work != work_of(resolved_of(spot), found.content):
                return None
            before = None if content is None else replace_field(found, content=content)
            change = self._changed(spot, call.arguments, before)
            return replace_field(change, undo=attempt.before)

    def _aim(self, place: ToolWorkspace, arguments: Any, stop: Event) -> Aim:
        return self._look(place, arguments, stop).aim(arguments.path)

    def _look(self, place: ToolWorkspace, arguments: Any, _: Event) -> Change:
        scope = self._keeper.scope(place)
        with self._keeper.way_to_change(scope, arguments.path) as spot:
            return self._change(scope, spot, arguments)

    def _do(self, call: "_Call", seen: Change, stop: Event) -> None:
        scope = self._keeper.scope(call.place)
        with self._keeper.way_to_change(scope, call.arguments.path) as spot:
            change = self._change(scope, spot, call.arguments)
            if (change.resolved, change.replaced) != (seen.resolved, seen.replaced):
                raise changed(call.arguments.path)
            if call.is_repeatable:
                work = work_of(change.resolved, change.content)
                note(call.place.scratch, Attempt(call=call.id, work=work, before=seen.undo))
            if change.is_appending and change.before is not None:
                append(self._keeper, scope, spot, change.before, change.content)
            else:
                draft = Draft(call=call.id, before=change.before, content=change.content)
                replace(self._keeper, spot, draft, stop)

    def _change(self, scope: Scope, spot: Spot, arguments: Any) -> Change:
        return self._changed(spot, arguments, before_change(self._keeper, scope, spot))

    def _changed(self, spot: Spot, arguments: Any, before: Before | None) -> Change:
        content = self._content(arguments, spot, before)
        if len(content) > LARGEST:
            raise too_large(spot.path, LARGEST)
        return Change(
            resolved=resolved_of(spot),
            tool_class=class_of(spot),
            before=before,
            content=content,
            is_appending=getattr(arguments, "mode", "") == "append",
        )


def _effect(arguments: WriteFileArguments | EditFileArguments) -> Effect:
    is_whole = isinstance(arguments, WriteFileArguments) and arguments.mode != "append"
    return Effect.IDEMPOTENT if is_whole else Effect.UNSAFE


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
