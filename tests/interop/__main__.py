"""Plays real programs against a model of our own, offline: `python -m tests.interop`.

Fetches what it needs first, then leaves the network. One line for each program and case. Ends with
0 when all passed, 1 when one failed, 3 when one could not be had and nobody had allowed that
(`--allow-missing`).
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.interop import framework_runs
from tests.interop.cases import CASES, Result, played
from tests.interop.installing import Missing, cache, command_of, node_for
from tests.interop.judges import JUDGES, judged
from tests.interop.model_server import a_model_server
from tests.interop.offline import leave_the_network
from tests.interop.programs import (
    ACPX,
    CONFORMANCE,
    GUESTS,
    INSPECTOR,
    SDK,
    USUAL,
    Package,
)
from tests.interop.stage import cleared, staged
from tests.interop.wires import recorded

FAILED, INCOMPLETE = 1, 3
# The agent frameworks, each in an environment of its own.
FRAMEWORKS = "frameworks"
GUEST_SECONDS = 300.0


class Report:
    """Says each result as it comes, and knows at the end what the whole was."""

    def __init__(self) -> None:
        self.table: dict[str, dict[str, Result]] = {}
        self.missing: dict[str, str] = {}

    def heard(self, name: str, result: Result) -> None:
        """Note a result and say it."""
        self.table.setdefault(name, {})[result.case] = result
        mark = {"passed": "ok", "failed": "FAILED"}.get(result.state, result.state)
        told = f" ({result.told})" if result.told else ""
        print(f"{name:<12} {result.case:<9} {mark:<9} {result.seconds:6.1f} s{told}", flush=True)

    def lacks(self, name: str, why: str) -> None:
        """Note what could not be had and say why, loudly."""
        self.missing[name] = why
        print(f"{name:<12} SKIPPED   {why}", flush=True)

    def code(self, *, may_miss: bool) -> int:
        """Return what the run ends with, after its last lines."""
        every = [result for row in self.table.values() for result in row.values()]
        failed = sum(result.state == "failed" for result in every)
        passed = sum(result.state == "passed" for result in every)
        skipped = len(self.missing) + sum(result.state == "not tried" for result in every)
        if self.missing:
            print(f"INCOMPLETE: not there: {', '.join(self.missing)}")
        print(f"interop: {passed} passed, {failed} failed, {skipped} skipped")
        if failed:
            return FAILED
        return INCOMPLETE if self.missing and not may_miss else 0


def main() -> int:
    """Fetch, leave the network, play."""
    wanted = _parser().parse_args()
    report = Report()
    names = list(wanted.only or (*USUAL, *JUDGES, FRAMEWORKS))
    there = [name for name in names if _is_there(name, report, is_latest=wanted.latest)]
    variables = leave_the_network()
    print(f"offline: {'proxies that lead nowhere' if variables else 'a network of its own'}")
    # Not in the shared temporary folder, which a confined program does not see.
    with tempfile.TemporaryDirectory(prefix="home-", dir=cache()) as folder:
        asyncio.run(_play(there, wanted, variables, (Path(folder), report)))
    if wanted.report is not None:
        shown = {
            name: {case: f"{each.state}: {each.told}" for case, each in row.items()}
            for name, row in report.table.items()
        }
        wanted.report.write_text(json.dumps({"matrix": shown, "missing": report.missing}, indent=1))
    return report.code(may_miss=wanted.allow_missing)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    known = (*GUESTS, *JUDGES, FRAMEWORKS)
    parser.add_argument("--only", type=lambda text: _names(text, known), help=", ".join(known))
    parser.add_argument("--latest", action="store_true", help="the newest versions")
    parser.add_argument("--allow-missing", action="store_true")
    parser.add_argument("--record", type=Path, help="a folder to write the wires into")
    parser.add_argument("--report", type=Path, help="a file to write the matrix into")
    return parser


def _names(text: str, known: tuple[str, ...]) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not among {', '.join(known)}")
    return names


def _is_there(name: str, report: Report, *, is_latest: bool) -> bool:
    """Fetch a program while there is a network, and tell whether that worked."""
    started = time.monotonic()
    try:
        if name == FRAMEWORKS:
            framework_runs.prepare()
        for package in _needed(name):
            command_of(package, is_latest=is_latest)
            if package.source == "npm":
                node_for(package, is_latest=is_latest)
    except Missing as missing:
        report.lacks(name, str(missing))
        return False
    seconds = time.monotonic() - started
    if seconds > 1:
        print(f"{name:<12} fetched {seconds:16.1f} s", flush=True)
    return True


def _needed(name: str) -> list[Package]:
    if name in GUESTS:
        return [GUESTS[name].package]
    needed = {"acpx": ACPX, "sdk": SDK, "inspector": INSPECTOR, "conformance": CONFORMANCE}
    return [needed[name]] if name in needed else []


async def _play(
    names: list[str],
    wanted: argparse.Namespace,
    variables: dict[str, str],
    into: tuple[Path, Report],
) -> None:
    folder, report = into
    async with a_model_server() as model:
        for name in names:
            place = cleared(folder / name)
            if name == FRAMEWORKS:
                await framework_runs.play(place, lambda each: report.heard(FRAMEWORKS, each))
                continue
            try:
                async with asyncio.timeout(GUEST_SECONDS):
                    if name in JUDGES:
                        await judged(name, place, lambda each, who=name: report.heard(who, each))
                        continue
                    guest = GUESTS[name]
                    stage = staged(guest, place, model, variables, is_latest=wanted.latest)
                    await played(stage, lambda each, who=name: report.heard(who, each))
                    if wanted.record is not None:
                        recorded(stage, wanted.record / f"{name}-{guest.package.version}")
            except Exception as error:  # noqa: BLE001 — whatever it is, the others go on
                left = next((case for case in CASES if case not in report.table.get(name, {})), "")
                report.heard(name, Result(left or "end", "failed", f"{error!r}"))


if __name__ == "__main__":
    sys.exit(main())
