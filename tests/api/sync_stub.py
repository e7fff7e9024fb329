"""Writes `holdfast/sync.pyi` anew: the protocol of the API without `async`, for type checkers."""

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from holdfast.loop_thread import LEFT_OUT

SOURCE = Path(__file__).resolve().parents[2] / "src" / "holdfast"
STUB = SOURCE / "sync.pyi"
# In the order of their classes in the stub.
MODULES = {
    "holdfast.zones.model": "zones/model.py",
    "holdfast.zones.api": "zones/api.py",
    "holdfast.ask.verbs": "ask/verbs.py",
    "holdfast.ask.children": "ask/children.py",
    "holdfast.ask.serving": "ask/serving.py",
    "holdfast.services.agents": "services/agents.py",
    "holdfast.api": "api.py",
}
OPENERS = {"holdfast.app": "app.py", "holdfast.client.remote": "client/remote.py"}
BUILT_IN = frozenset(dir(builtins)) | {"self"}


def render() -> str:
    """Return the stub, formatted."""
    trees = {name: ast.parse((SOURCE / path).read_text("utf-8")) for name, path in MODULES.items()}
    openers = {
        name: ast.parse((SOURCE / path).read_text("utf-8")) for name, path in OPENERS.items()
    }
    classes = [each for tree in trees.values() for each in tree.body if is_protocol(each)]
    shown = {each.name for each in classes}
    found = [as_class(each, shown) for each in classes] + [
        as_opener(each)
        for tree in openers.values()
        for each in tree.body
        if isinstance(each, ast.AsyncFunctionDef) and each.name in {"open_holdfast", "connect"}
    ]
    body = "\n\n".join(ast.unparse(each) for each in found)
    lines = imports({**trees, **openers}, used(found) - shown)
    text = (
        "# Generated from the protocol: python -m tests.api.sync_stub\n"
        f'{lines}\nV = TypeVar("V")\n\n{body}\n'
    )
    for command in (["check", "--select=I,UP", "--fix-only", "-q"], ["format", "-q"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


def is_protocol(node: ast.stmt) -> bool:
    """Return whether a statement is a protocol of the API."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases
    )


def as_class(node: ast.ClassDef, shown: set[str]) -> ast.ClassDef:
    """Return a protocol with blocking verbs."""
    group = {"ExportsApi": "exports"}.get(node.name, "")
    left_out = LEFT_OUT.get(group, frozenset())
    methods = [
        each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    overloaded = {each.name for each in methods if "overload" in decorators(each)}
    kept = [
        as_verb(each)
        for each in methods
        if each.name not in left_out
        and (each.name not in overloaded or "overload" in decorators(each))
    ]
    bases = [base for base in node.bases if isinstance(base, ast.Name) and base.id in shown]
    return ast.ClassDef(
        name=node.name, bases=[*bases], keywords=[], body=[*kept], decorator_list=[], type_params=[]
    )


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of a function's decorators."""
    return {each.id for each in node.decorator_list if isinstance(each, ast.Name)}


def as_verb(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef:
    """Return a verb that blocks."""
    verb = ast.FunctionDef(
        name=node.name,
        args=arguments(node.args),
        body=[ast.Expr(ast.Constant(...))],
        decorator_list=node.decorator_list,
        returns=blocking(unquoted(node.returns)),
        type_params=[],
    )
    return ast.fix_missing_locations(verb)


def as_opener(node: ast.AsyncFunctionDef) -> ast.FunctionDef:
    """Return a function that opens a Holdfast, as a context manager."""
    node.decorator_list = []
    node.returns = ast.parse("AbstractContextManager[Holdfast]", mode="eval").body
    return as_verb(node)


def arguments(given: ast.arguments) -> ast.arguments:
    """Return the parameters with plain annotations; a default is only marked."""
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.kwarg):
        if each is not None:
            each.annotation = None if each.arg == "self" else unquoted(each.annotation)
    given.defaults = [ast.Constant(...) for _ in given.defaults]
    given.kw_defaults = [None if each is None else ast.Constant(...) for each in given.kw_defaults]
    return given


class Unquote(ast.NodeTransformer):
    """Replaces annotations that are strings by what they say."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """Parse a text."""
        return ast.parse(node.value, mode="eval").body if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Leave the texts of a `Literal` alone."""
        if isinstance(node.value, ast.Name) and node.value.id == "Literal":
            return node
        self.generic_visit(node)
        return node


def unquoted(node: ast.expr | None) -> ast.expr | None:
    """Return an annotation without quotes."""
    return None if node is None else Unquote().visit(node)


def blocking(node: ast.expr | None) -> ast.expr | None:
    """Return the type of a result that was asynchronous."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "AsyncGenerator"
        and isinstance(node.slice, ast.Tuple)
    ):
        return ast.Subscript(ast.Name("Iterator"), node.slice.elts[0])
    return node


def used(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that the stub refers to."""
    return (
        {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
        - BUILT_IN
        - {"V", "property"}
    )


def imports(trees: dict[str, ast.Module], names: set[str]) -> str:
    """Return the imports of the names, from where the sources have them."""
    homes = {
        "Iterator": "collections.abc",
        "AbstractContextManager": "contextlib",
        "TypeVar": "typing",
    }
    lines = []
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    homes.setdefault(each.asname or each.name, str(node.module))
            elif isinstance(node, ast.Import):
                lines += [f"import {each.name}" for each in node.names if each.name in names]
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else node
            name = getattr(target, "name", None) or getattr(target, "id", None)
            if name:
                homes[name] = module
    wanted = sorted({*names, "TypeVar"} - {line.removeprefix("import ") for line in lines})
    return "\n".join([*lines, *(f"from {homes[name]} import {name}" for name in wanted)])


if __name__ == "__main__":
    STUB.write_text(render(), "utf-8")
