"""Holds the public names: what `import holdfast` offers is exactly what we mean to keep."""

import ast
import subprocess
import sys

import holdfast
from tests.house.source import SOURCE

OFFERED = set(holdfast._HOMES) | {"__version__"}


def test_the_public_names_are_sorted_and_each_stands_once() -> None:
    assert holdfast.__all__ == sorted(OFFERED)


def test_every_public_name_comes_from_its_home() -> None:
    for name, home in holdfast._HOMES.items():
        offered = getattr(holdfast, name)

        assert (offered.__name__, offered.__module__) == (name, f"holdfast.{home}")


def test_type_checkers_are_shown_the_same_names_from_the_same_homes() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {
        each.asname: f"{node.module}.{each.name}"
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }

    homes = {name: f"holdfast.{home}.{name}" for name, home in holdfast._HOMES.items()}
    assert shown == homes


def test_dir_offers_the_public_names_and_nothing_by_accident() -> None:
    # A fresh process, because submodules become attributes as they are imported.
    told = run("import holdfast; print(*(name for name in dir(holdfast)))")
    names = set(told.split())

    assert names >= OFFERED
    assert {name for name in names - OFFERED if not name.startswith("_")} == set()


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    told = run("import holdfast\ntry: holdfast.nothing\nexcept AttributeError as e: print(e)")

    assert told == "module 'holdfast' has no attribute 'nothing'\n"


def test_the_bare_import_loads_neither_a_loop_nor_a_codec() -> None:
    told = run(
        "import sys; before = set(sys.modules); import holdfast; "
        "print(*sorted(name for name in set(sys.modules) - before))"
    )

    loaded = {name.partition(".")[0] for name in told.split()}
    assert loaded & {"asyncio", "msgspec", "apsw", "typer", "rich", "starlette"} == set()
    assert {name for name in told.split() if name.startswith("holdfast")} == {"holdfast"}


def run(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout
