"""The source as the gates read it: files, trees and functions. It judges nothing."""

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.marks import uncollected

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "holdfast"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file; `name` is its path below the package, such as `services/journal.py`."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Return how many lines the file has."""
        return len(self.text.splitlines())

    @property
    def home(self) -> str:
        """Return the part of the house the module belongs to: `store`, `config`, …"""
        return self.name.partition("/")[0].removesuffix(".py")


@cache
def modules() -> tuple[Module, ...]:
    """Return every module of the package, by name."""
    with uncollected():
        found = tuple(
            module(path.relative_to(SOURCE).as_posix(), path.read_text("utf-8"))
            for path in sorted(SOURCE.rglob("*.py"))
        )
        # They live as long as the run does.
        gc.freeze()
    return found


def module(name: str, text: str) -> Module:
    """Return a module of a text; tests use it to show that a gate can fail."""
    return Module(name, text, ast.parse(text, name))


def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return every node of a tree; each tree is walked once, for all gates."""
    found: tuple[ast.AST, ...] | None = getattr(tree, "walked", None)
    if found is None:
        found = tuple(ast.walk(tree))
        tree.walked = found  # type: ignore[attr-defined]
    return found


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function and method, nested ones too."""
    for node in nodes(tree):
        if isinstance(node, Function):
            yield node


def last_name(node: ast.AST) -> str:
    """Return the last word of a name such as `a.b.c`, or nothing."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
