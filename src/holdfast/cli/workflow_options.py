"""Options of the commands about workflows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import YES_TO_HELP


@dataclass(frozen=True, kw_only=True)
class OneFile:
    """A file of a workflow."""

    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A workflow, .relavium.yaml; - is stdin.", show_default=False
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class FormatOptions(OneFile):
    """What becomes of the text."""

    write: Annotated[
        bool, typer.Option("--write", help="Put it into the file; comments are not kept.")
    ] = False
    check: Annotated[
        bool, typer.Option("--check", help="Only tell whether the file has that form.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class RunOptions(OneFile):
    """Where a workflow is played, and with what."""

    cwd: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Work in this folder, not the current one.")
    ] = None
    model: Annotated[
        str | None, typer.Option(metavar="P:N", help="The model to ask first, provider:name.")
    ] = None
    yes_to: Annotated[
        list[str] | None, typer.Option("--yes-to", metavar="TOOL", help=YES_TO_HELP)
    ] = None
