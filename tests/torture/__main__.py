"""Runs the rows of the proof and says one line for each: `python -m tests.torture`.

Without `--rows` it runs every row, and then has a line for the other tests that take too long for
`make test`: property tests with more examples, and those marked `torture`, such as the services on
Postgres. `--level test` takes small sizes and runs side by side.

Ends with 0 when all held, 1 when one was violated, 3 when one could not run and nobody had
allowed that (`ALLOW_SKIP=R03,R06`, ids one by one).
"""

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import pytest

from tests.marks import TESTS, marked_tests, plain_name
from tests.torture.rows import LEVELS, QUICK, row_named, rows

VIOLATED, INCOMPLETE = 1, 3
# The line of what is of no row.
OTHERS = "all"


class Lines:
    """Hears how the tests of each row end, and says the row's line after its last test.

    It knows tests by their names only: side by side they live in other processes.
    """

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = set(wanted)
        self._proven = {test.name: test.proves for test in marked_tests(word="proves(")}
        self._left: Counter[str] = Counter()
        self._count: Counter[str] = Counter()
        self._told: defaultdict[str, list[str]] = defaultdict(list)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.skipped: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the tests of each row."""
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Count the tests of each row; every process has found the same."""
        if not self._left:
            self._expect(ids)

    def _expect(self, node_ids: Iterable[str]) -> None:
        self._count.update(row for node_id in node_ids for row in self._rows_of(node_id))
        self._left.update(self._count)

    def _rows_of(self, node_id: str) -> list[str]:
        proven = self._proven.get(plain_name(node_id), ())
        return [id for id in proven if id in self._wanted] if proven else [OTHERS]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a part of a test ended."""
        for row in self._rows_of(report.nodeid):
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
        if row == OTHERS:
            what, promise = f"{self._count[row]} tests that are of no row", ""
        else:
            promise = " ".join(row_named(row).promise)
        seconds = f"({self._seconds[row]:.0f} s)"
        print(f"{row} {promise:<12} {_coloured(verdict):<7}  {what}  {seconds}", flush=True)


def main() -> int:
    """Run the rows that were asked for, or all that are proven."""
    given = _arguments()
    proven = {id for test in marked_tests(word="proves(") for id in test.proves}
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
        for test in marked_tests(word="proves(")
        if set(test.proves) & set(wanted)
    }
    kept = [f"--rows={','.join(wanted)}"]
    if not given.rows:
        files = {str(TESTS)}
        kept += ["--others", "--hypothesis-profile=torture"]
    if given.level in (QUICK, "test") and (len(files) > 1 or not given.rows):
        kept += ["-n", "3"]
    seed = [f"--seed={given.seed}"] if given.seed is not None else []
    quiet = ["-q", "--no-header", "--show-capture=stdout", "--tb=short"]
    # A row may take minutes, and has a patience of its own for what hangs.
    quiet += ["-o", "console_output_style=classic", "-o", "faulthandler_timeout=0"]
    return [*sorted(files), *kept, f"--level={given.level}", *seed, *quiet]


def _coloured(verdict: str) -> str:
    if not sys.stdout.isatty() or verdict == "PASS":
        return verdict
    return f"\033[31m{verdict}\033[0m"


if __name__ == "__main__":
    sys.exit(main())
