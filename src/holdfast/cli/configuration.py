"""`holdfast config`: what is set, and where each value came from."""

import typer

from holdfast.cli.commands import Nothing, command
from holdfast.cli.output import Printer


def show(printer: Printer, _: Nothing) -> None:
    """Show all settings and where they came from."""
    from holdfast.config import PLACES, explain

    config, origins = explain(file=printer.settings.config)
    # The home has no key, because the file that could set it lies in it.
    places = {"home": ("", "HOLDFAST_HOME")} | {
        name: (f"{section}.{key}", variable) for name, (section, key, variable) in PLACES.items()
    }
    forms = []
    for name, (key, variable) in places.items():
        value = getattr(config, name)
        forms.append(
            {
                "name": name,
                "value": value if isinstance(value, int | float | None) else str(value),
                "origin": origins[name],
                "key": key or None,
                "environment": variable,
            }
        )
    rows = [
        (
            str(form["name"]),
            str(form["value"] if form["value"] is not None else "-"),
            str(form["origin"]),
            ", ".join(str(form[name]) for name in ("environment", "key") if form[name]),
        )
        for form in forms
    ]
    if printer.is_json:
        printer.document({"data": forms})
    else:
        printer.table(("SETTING", "VALUE", "FROM", "SET BY"), rows)


def register(app: typer.Typer) -> None:
    """Put the command into the command line."""
    command(app, "config", Nothing)(show)
