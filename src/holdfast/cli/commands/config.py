"""`holdfast config`: the settings, and the source of each value."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import typer

from holdfast.cli.command import command
from holdfast.cli.output import Printer
from holdfast.config import SETTING_KEYS, explain, setting_value
from holdfast.store.database_url import shown_url

app = typer.Typer()


@command(app, "config", only_here=True)
def show(printer: Printer) -> None:
    """Show all settings and their sources."""
    config, origins = explain(file=printer.settings.config)
    # The home has no key, because the configuration file is inside it.
    keys = {"home": (None, "HOLDFAST_HOME")} | {
        name: (key.path, key.variable) for name, key in SETTING_KEYS.items()
    }
    forms = [
        {
            "name": name,
            "value": _redact(name, setting_value(config, name)),
            "origin": origins[name],
            "key": key,
            "environment": variable,
        }
        for name, (key, variable) in keys.items()
    ]
    if printer.is_json:
        printer.document({"data": forms})
        return
    rows = [
        (
            str(form["name"]),
            _text_of(form["value"]),
            str(form["origin"]),
            ", ".join(str(form[name]) for name in ("environment", "key") if form[name]),
        )
        for form in forms
    ]
    printer.table(("SETTING", "VALUE", "FROM", "SET BY"), rows)


def _redact(name: str, value: Any) -> Any:
    """Return a value without secrets."""
    is_address = name == "database_url" and value is not None
    return shown_url(value) if is_address else _plain(value)


def _plain(value: Any) -> Any:
    """Return a value as JSON; a duration in the notation of the file."""
    match value:
        case timedelta():
            return _duration_text(value)
        case Path():
            return str(value)
        case tuple():
            return [_plain(each) for each in value]
        case _:
            return msgspec.to_builtins(value)


def _duration_text(value: timedelta) -> str:
    seconds = value.total_seconds()
    for unit, length in (("h", 3_600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def _text_of(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case str():
            return value
        case (
            {"host": name, "secret": target}
            | {"name": name, "command": str(target)}
            | {"name": name, "url": str(target)}
        ):
            return f"{name} ({target})"
        case Sequence():
            return ", ".join(map(_text_of, value)) or "-"
        case _:
            return str(value)
