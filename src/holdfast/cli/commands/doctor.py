"""`holdfast doctor`: check the home and the store."""

import typer

from holdfast.cli.command import command
from holdfast.cli.doctor import DoctorOptions, examine


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, "doctor", DoctorOptions, only_here=True)(examine)
