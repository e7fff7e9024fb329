"""Runs the rows of the proof and says one line for each: `python -m tests.torture`.

Ends with 0 when all held, 1 when one was violated, 3 when one could not run and nobody had
allowed that (`ALLOW_SKIP=R03,R06`, ids one by one).
"""

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from tests.marks import TESTS, marked_tests
from tests.torture.rows import LEVELS, row_named, rows

VIOLATED, INCOMPLETE = 1, 3


class Lines:
    """Hears how the tests of each row end, and says the row's line after its last test."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = set(wanted)
        self._left: Counter[str] = Counter()
        self._rows_of: dict[str, list[str]] = {}
        self._told: defaultdict[str, list[str]] = defaultdict(list)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.skipped: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Keep the tests of the wanted rows, and count them."""
        for item in items:
            ids = [id for mark in item.iter_markers("proves") for id in mark.args]
            self._rows_of[item.nodeid] = [id for id in ids if id in self._wanted]
        items[:] = [item for item in items if self._rows_of[item.nodeid]]
        self._left.update(row for item in items for row in self._rows_of[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a part of a test ended."""
        for row in self._rows_of.get(report.nodeid, ()):
            self._seconds[row] += report.duration
            if report.failed:
                self.failed.add(row)
            if report.skipped:
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
                self.skipped[row] = str(reason).removeprefix("Skipped: ")
            if report.when == "teardown":
                told = [what for name, what in report.user_properties if name == "told"]
                self._told[row] += map(str, told)
                self._left[row] -= 1
                if self._left[row] == 0:
                    self._say(row)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Show no dots: the lines of the rows are the progress."""
        if report.when == "call" or not report.passed:
            return report.outcome, "", report.outcome.upper()
        return None

    def _say(self, row: str) -> None:
        verdict = "FAIL" if row in self.failed else "SKIPPED" if row in self.skipped else "PASS"
        what = "; ".join(self._told[row]) or self.skipped.get(row, "")
        promise = " ".join(row_named(row).promise)
        seconds = f"({self._seconds[row]:.0f} s)"
        print(f"{row} {promise:<12} {_coloured(verdict):<7}  {what}  {seconds}", flush=True)


def main() -> int:
    """Run the rows that were asked for, or all that are proven."""
    given = _arguments()
    proven = {id for test in marked_tests(word="proves") for id in test.proves}
    wanted = given.rows.split(",") if given.rows else [row.id for row in rows() if row.id in proven]
    unproven = [row for row in wanted if row not in proven]
    if unproven:
        print(f"No test proves {', '.join(unproven)} yet.")
        return VIOLATED
    lines = Lines(wanted)
    status = pytest.main(_pytest_arguments(given, wanted), plugins=[lines])
    if lines.failed or status not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return VIOLATED
    allowed = set(filter(None, os.environ.get("ALLOW_SKIP", "").split(",")))
    if given.level == "release":
        allowed = set()
    return INCOMPLETE if set(lines.skipped) - allowed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--rows", default="", help="ids of rows, with commas between them")
    parser.add_argument("--seed", type=int, help="the luck of a run that is to be repeated")
    parser.add_argument("--level", choices=LEVELS, default="torture")
    return parser.parse_args()


def _pytest_arguments(given: argparse.Namespace, wanted: Sequence[str]) -> list[str]:
    files = {
        str(TESTS / test.name.partition("::")[0])
        for test in marked_tests(word="proves")
        if set(test.proves) & set(wanted)
    }
    seed = [f"--seed={given.seed}"] if given.seed is not None else []
    quiet = ["-q", "--no-header", "--show-capture=stdout", "--tb=short"]
    # A row may take minutes, and has a patience of its own for what hangs.
    quiet += ["-o", "console_output_style=classic", "-o", "faulthandler_timeout=0"]
    return [*sorted(files), f"--level={given.level}", *seed, *quiet]


def _coloured(verdict: str) -> str:
    if not sys.stdout.isatty() or verdict == "PASS":
        return verdict
    return f"\033[31m{verdict}\033[0m"


if __name__ == "__main__":
    sys.exit(main())
