"""`holdfast repos list|add|remove`: the repositories that agents may work in."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.options import LIMIT, LIMIT_MOST, Cursor, Limit, argument, option, page_after
from holdfast.cli.output import Printer
from holdfast.cli.workspace import absolute_path
from holdfast.domain.errors import Code, Denied
from holdfast.domain.queries import require_limit
from holdfast.wire.repo_sessions import repository_form

app = typer.Typer()
group = add_group(app, "repos")


@command(group, "list")
async def show_list(printer: Printer, *, limit: Limit = LIMIT, cursor: Cursor = None) -> None:
    """List repositories by name."""
    limit = require_limit(limit, most=LIMIT_MOST)
    async with connect(printer) as holdfast:
        every = await holdfast.repos.list(holdfast.owner)
    shown, more = page_after(every, cursor, limit)
    printer.listing(
        [repository_form(each) for each in shown],
        more,
        ("ID", "NAME", "PATH"),
        [(each.id, each.name, each.path) for each in shown],
    )
    if not every:
        printer.remark("No repositories; register one with `holdfast repos add PATH`.")


@command(group, "add")
async def add(
    printer: Printer,
    *,
    path: Annotated[Path, argument("PATH", "The path of a Git work tree.")],
    name: Annotated[
        str | None, option("NAME", "The repository's name; default: the name of its folder.")
    ] = None,
) -> None:
    """Register a Git work tree.

    Registering the same work tree again changes nothing.
    """
    async with connect(printer) as holdfast:
        # No allowed root is required here, because the local user can read the folder anyway.
        try:
            repo = await holdfast.repos.add(
                holdfast.owner, str(absolute_path(path)), name=name, at_terminal=True
            )
        except Denied as error:
            root = printer.settings.load().workspace_root
            is_here = printer.settings.server is None
            if error.code is not Code.REPO_OUTSIDE_ROOT or not is_here:
                raise
            raise Denied(error.code, f"{error.message} Its work tree is {root}.") from None
    printer.done(repository_form(repo), f"Registered repository {repo.name} as {repo.id}.")


@command(group, "remove")
async def remove(
    printer: Printer, *, id: Annotated[str, argument("ID", "The repository's id.")]
) -> None:
    """Unregister a repository; its files are not changed.

    Refused while a session is bound to it.
    """
    async with connect(printer) as holdfast:
        await holdfast.repos.remove(holdfast.owner, id)
    printer.done({"removed": id}, f"Unregistered repository {id}.")
