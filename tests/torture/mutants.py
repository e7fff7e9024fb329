"""Mutants: the product with one small thing changed, and whether its tests notice.

A mutant is one module written anew into a copy of the package; everything else stays as it is.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.house.source import ROOT

# What is mutated, and the tests that have to notice.
TARGETS: Final = {
    "domain/approvals.py": (
        "tests/domain/test_approvals.py",
        "tests/services/test_approval_policy.py",
    ),
    "services/approvals.py": (
        *("tests/services/test_approvals.py", "tests/services/test_limits.py"),
        "tests/services/test_pauses.py",
    ),
    "domain/calls.py": ("tests/domain/test_calls.py", "tests/services/test_calls.py"),
    "domain/leases.py": ("tests/execution",),
    "services/leases.py": (
        *("tests/execution", "tests/services/test_recovery.py", "tests/loops/test_held_turns.py"),
        *("tests/services/test_client_calls.py", "tests/integrations/test_durable_calls.py"),
    ),
    "services/turns.py": (
        *("tests/services/test_turns.py", "tests/services/test_turn_failures.py"),
        *("tests/services/test_models.py", "tests/services/test_limits.py"),
        *("tests/services/test_pauses.py", "tests/services/test_costs.py"),
        *("tests/services/test_closings.py", "tests/execution/test_leases.py"),
    ),
    "services/journal.py": (
        *("tests/services/test_messages.py", "tests/services/test_calls.py"),
        *("tests/services/test_costs.py", "tests/services/test_approvals.py"),
        *("tests/services/test_live_session.py", "tests/services/test_event_buffer.py"),
        "tests/services/test_turns.py",
    ),
    "store/messages.py": (
        *("tests/store/test_record.py", "tests/store/test_damage.py"),
        "tests/observations/test_hosted_sessions.py",
    ),
    "store/events.py": (
        *("tests/store/test_event_rows.py", "tests/store/test_wal_check.py"),
        *("tests/services/test_events.py", "tests/services/test_event_cursors.py"),
        *("tests/services/test_history_bounds.py", "tests/services/test_sweeps.py"),
        "tests/store/test_checks.py",
    ),
    "store/sqlite/writer.py": (
        *("tests/store/test_writer.py", "tests/store/test_failing_disk.py"),
        *("tests/store/test_wal_anchor.py", "tests/store/test_logs.py"),
    ),
}
PATIENCE: Final = 300
_OPPOSITES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """A module with one thing changed."""

    module: str
    line: int
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.what}"


def mutants_of(module: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    tree = ast.parse(source)
    for place, node in enumerate(ast.walk(tree)):
        for what in _changes(node):
            changed = deepcopy(tree)
            _apply(list(ast.walk(changed))[place], what)
            yield Mutant(module, getattr(node, "lineno", 0), what, ast.unparse(changed))


def _changes(node: ast.AST) -> Iterator[str]:
    """Yield what can be changed about a node, in words that tell how."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OPPOSITES:
            yield f"{type(op).__name__} becomes {_OPPOSITES[type(op)].__name__}"
        case ast.BoolOp():
            yield "and and or change places"
        case ast.UnaryOp(op=ast.Not()):
            yield "a not is dropped"
        case ast.Constant(value=bool()):
            yield "true and false change places"
        case ast.Constant(value=int()):
            yield "a number is one more"
        case ast.Expr(value=ast.Await() | ast.Call()) if not _is_log(node):
            yield "a statement is dropped"
        case ast.Raise():
            yield "nothing is raised"


def _apply(node: ast.AST, what: str) -> None:
    match node:
        case ast.Compare():
            node.ops = [_OPPOSITES[type(node.ops[0])]()]
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.Expr():
            node.value = ast.Constant(value=None)
        case ast.Raise():
            node.__class__ = ast.Pass  # type: ignore[assignment]
        case _:
            raise AssertionError(what)


def _is_log(node: ast.AST) -> bool:
    return "log." in ast.unparse(node)


class Nursery:
    """A copy of the package in which one module at a time is a mutant."""

    def __init__(self, folder: Path) -> None:
        self._package = folder / "src" / "holdfast"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "holdfast", self._package, ignore=ignored)

    def is_killed(self, mutant: Mutant) -> bool:
        """Tell whether a test fails, or never ends, over the mutant."""
        file = self._package / mutant.module
        before = file.read_text("utf-8")
        file.write_text(mutant.source, "utf-8")
        try:
            return self._fails(TARGETS[mutant.module])
        finally:
            file.write_text(before, "utf-8")

    def is_sound(self, module: str) -> bool:
        """Tell whether the tests of a module pass over the copy as it is."""
        return not self._fails(TARGETS[module])

    def _fails(self, tests: tuple[str, ...]) -> bool:
        # The copy comes before what is installed, also in the processes that a test starts.
        paths = (str(self._package.parent), str(ROOT))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["-o", f"pythonpath={' '.join(paths)}"]
        try:
            run = subprocess.run(
                [*command, *tests],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        return run.returncode != 0
