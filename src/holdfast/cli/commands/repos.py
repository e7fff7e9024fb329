"""`holdfast repos list|add|remove`: the repositories that agents may work in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.options import LIMIT_MOST, Paging, argument, option
from holdfast.cli.output import Printer
from holdfast.cli.workspace import absolute_path
from holdfast.domain.errors import Code, Denied
from holdfast.domain.repos import Repo


async def show_list(printer: Printer, options: Paging) -> None:
    """List repositories by name."""
    from holdfast.domain.queries import require_limit
    from holdfast.wire.repo_sessions import repository_form

    limit = require_limit(options.limit, most=LIMIT_MOST)
    async with connect(printer) as holdfast:
        every = await holdfast.repos.list(holdfast.owner)
    rest = _after_cursor(every, options.cursor)
    shown = rest[:limit]
    more = shown[-1].id if len(rest) > limit else None
    printer.listing(
        [repository_form(each) for each in shown],
        more,
        ("ID", "NAME", "PATH"),
        [(each.id, each.name, each.path) for each in shown],
    )
    if not every:
        printer.remark("No repositories; register one with `holdfast repos add PATH`.")


@dataclass(frozen=True, kw_only=True)
class AddOptions:
    """A new repository."""

    path: Annotated[Path, argument("PATH", "The path of a Git work tree.")]
    name: Annotated[
        str | None, option("NAME", "The repository's name; default: the name of its folder.")
    ] = None


async def add(printer: Printer, options: AddOptions) -> None:
    """Register a Git work tree.

    Registering the same work tree again changes nothing.
    """
    from holdfast.wire.repo_sessions import repository_form

    path = str(absolute_path(options.path))
    async with connect(printer) as holdfast:
        # No allowed root is required here, because the local user can read the folder anyway.
        try:
            repo = await holdfast.repos.add(
                holdfast.owner, path, name=options.name, at_terminal=True
            )
        except Denied as error:
            root = printer.settings.load().workspace_root
            is_here = printer.settings.server is None
            if error.code is not Code.REPO_OUTSIDE_ROOT or not is_here:
                raise
            raise Denied(error.code, f"{error.message} Its work tree is {root}.") from None
    printer.done(repository_form(repo), f"Registered repository {repo.name} as {repo.id}.")


@dataclass(frozen=True, kw_only=True)
class RemoveOptions:
    """A repository by its id."""

    id: Annotated[str, argument("ID", "The repository's id.")]


async def remove(printer: Printer, options: RemoveOptions) -> None:
    """Unregister a repository; its files are not changed.

    Refused while a session is bound to it.
    """
    async with connect(printer) as holdfast:
        await holdfast.repos.remove(holdfast.owner, options.id)
    printer.done({"removed": options.id}, f"Unregistered repository {options.id}.")


def _after_cursor(every: Sequence[Repo], cursor: str | None) -> list[Repo]:
    """Return the repositories after the cursor."""
    from holdfast.domain.errors import Code, Invalid

    if cursor is None:
        return list(every)
    for index, repo in enumerate(every):
        if repo.id == cursor:
            return list(every[index + 1 :])
    raise Invalid(
        Code.INVALID_CURSOR, "The cursor does not belong to this listing; start without --cursor."
    )


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = add_group(app, "repos", "Manage the repositories agents may work in.")
    command(group, "list", Paging)(show_list)
    command(group, "add", AddOptions)(add)
    command(group, "remove", RemoveOptions)(remove)
