"""Makes a run end by saying what it did not prove, and fail if a demand was skipped.

It also knows how hard a run tries: `--level` chooses the sizes of the rows, `--seed` their luck,
and which tests belong to a run: `make test` takes one of each row, `make torture` all of the rows
that `--rows` names and, with `--others`, what is too slow for `make test`.
At the end it knows reports only, never items: under xdist those live in other processes.
Skipping itself is `marks.skip_row`.
"""

import gc
import os
import re
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.marks import plain_name
from tests.torture.rows import LEVELS, QUICK, row_named, rows

MARKERS = (
    "demands(*ids): the demands of the seeds that the test shows to be met",
    "proves(*ids): the rows that the test proves",
    "torture: takes too long for `make test`; part of `make torture`",
    "sampled(count): of its cases, `make test` runs so many and `make torture` all",
)
ROW = re.compile(r"(?P<row>[RS][0-9]{2}) \([DP0-9 ]+\): needs .+", re.DOTALL)


@dataclass(frozen=True)
class Skip:
    """One test that did not run; `row` is empty when it was skipped past the one helper."""

    test: str
    row: str
    reason: str
    demands: tuple[str, ...]

    @property
    def line(self) -> str:
        """Say which row, promise and means, or at least which test."""
        return f"SKIPPED {self.reason}" if self.row else f"SKIPPED {self.test}: {self.reason}"

    @property
    def cause(self) -> str:
        """Say what stays unproven, in the short form of the last line."""
        return f"{self.row} → {' '.join(row_named(self.row).promise)}" if self.row else self.test


class Unproven:
    """Collects the skips of a run and tells them at its end."""

    def __init__(self) -> None:
        self.skips: list[Skip] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.skips.append(_skip(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if any(skip.demands for skip in self.skips) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in dict.fromkeys(skip.line for skip in self.skips):
            terminalreporter.write_line(line, red=True)
        for skip in self.skips:
            if skip.demands:
                unmet = ", ".join(skip.demands)
                terminalreporter.write_line(f"UNMET {unmet}: {skip.test} was skipped", red=True)
        causes = list(dict.fromkeys(skip.cause for skip in self.skips))
        if causes:
            last = f"INCOMPLETE: {len(causes)} skipped ({', '.join(causes)})"
            terminalreporter.write_line(last, red=True, bold=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption(
        "--level",
        choices=LEVELS,
        default="test",
        help="how hard the rows of the proof try",
    )
    group.addoption(
        "--rows",
        default="",
        help="run only the tests that prove these rows, with commas between them",
    )
    group.addoption(
        "--others",
        action="store_true",
        help="with --rows: run the property tests and the tests marked `torture` as well",
    )
    group.addoption(
        "--seed",
        type=int,
        default=None,
        help="the seed of every random test, as a failing run printed it",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Nothing of what is loaded and collected is garbage.
    gc.disable()
    _avoid_memory()
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(Unproven(), "holdfast-unproven")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """Make no items of a test that `make test` leaves out: thousands of cases are built of them."""
    if str(collector.config.getoption("--level")) != QUICK or not name.startswith("test"):
        return None
    if collector.config.getoption("--rows"):
        return None
    marks = [*getattr(obj, "pytestmark", ()), *collector.iter_markers()]
    is_row = any(mark.name == "proves" for mark in marks)
    if is_row and plain_name(f"{collector.nodeid}::{name}") not in {row.quick for row in rows()}:
        return []
    return [] if any(mark.name == "torture" for mark in marks) and not is_row else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that do not belong to a run of this kind; that is not a skip."""
    level = str(config.getoption("--level"))
    wanted = {id for id in str(config.getoption("--rows")).split(",") if id}
    with_others = bool(config.getoption("--others"))
    quick = {row.quick for row in rows()}
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        proven = {id for mark in item.iter_markers("proves") for id in mark.args}
        is_due = not proven or any(row_named(id).size(level) != "–" for id in proven)
        if wanted:
            is_due = is_due and bool(proven & wanted or (with_others and _is_other(item)))
        elif level == QUICK:
            name = plain_name(item.nodeid)
            is_due = name in quick if proven else not _is_marked_torture(item)
            # Of several cases the first.
            quick.discard(name)
        (kept if is_due else left_out).append(item)
    if level == QUICK and not wanted:
        sample = _sample(kept)
        left_out += [item for item in kept if item not in sample]
        kept = [item for item in kept if item in sample]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = _spread(kept)


def _is_other(item: pytest.Item) -> bool:
    """Tell whether it is no row's, and yet `make torture` does more of it than `make test`."""
    has_examples = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    is_sampled = item.get_closest_marker("sampled") is not None
    return bool(has_examples) or is_sampled or _is_marked_torture(item)


def _is_marked_torture(item: pytest.Item) -> bool:
    return item.get_closest_marker("torture") is not None


def _sample(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return all items but, of the cases of a sampled test, only some: evenly spread ones."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(plain_name(item.nodeid), []).append(item)
    kept: set[pytest.Item] = set()
    for each in cases.values():
        mark = each[0].get_closest_marker("sampled")
        count = min(len(each), mark.args[0]) if mark else len(each)
        kept |= {each[number * len(each) // count] for number in range(count)}
    return kept


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with the modules that mostly wait among those that mostly compute."""
    modules = list(dict.fromkeys(item.path for item in items))
    waiting = [path for path in modules if path.parent.name == "torture"]
    busy = [path for path in modules if path.parent.name != "torture"]
    places = {
        path: (number + 0.5) / len(paths)
        for paths in (waiting, busy)
        for number, path in enumerate(paths)
    }
    return sorted(items, key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what lives as long as the run does."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the test's demands on its report, the one thing that travels between processes."""
    report = yield
    if report.skipped:
        ids = [id for mark in item.iter_markers("demands") for id in mark.args]
        report.user_properties.append(("demands", ids))
    return report


def _skip(report: pytest.TestReport) -> Skip:
    told = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else report.longrepr
    reason = str(told).removeprefix("Skipped: ")
    row = ROW.fullmatch(reason)
    demands = [
        id for name, ids in report.user_properties if name == "demands" for id in str_list(ids)
    ]
    return Skip(report.nodeid, row["row"] if row else "", reason, tuple(demands))


def _avoid_memory() -> None:
    """Keep temporary folders on a disk: a store refuses a file system that lives in memory."""
    # Imported here, because what is imported with a plugin is not seen by the coverage.
    from holdfast.store.sqlite.files import file_system_of

    folders = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    kept = [folder for folder in folders if file_system_of(folder) not in {"tmpfs", "ramfs"}]
    if kept and kept[0] != folders[0]:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(kept[0]))


def str_list(value: object) -> list[str]:
    """Return the strings of a list that came as an untyped property."""
    return [str(each) for each in value] if isinstance(value, list) else []
