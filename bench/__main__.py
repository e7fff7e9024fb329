"""Run the figures: `python -m bench [--only NAME,NAME]`; writes bench/results.json.

With `--sync-ms N` every sync of the disk takes so much longer, for us and for the yardsticks.
"""

import argparse
import os
import platform
import sys
import time
from pathlib import Path

import apsw
import msgspec

from bench import (  # noqa: F401 — they register
    appends,
    asks,
    crowds,
    frameworks,
    functions,
    loops,
    observations,
    pages,
    postgres,
    processes,
    programs,
    reads,
    search,
    streams,
    terminal,
    turn_costs,
    turns,
    web,
    workers,
    zones,
)
from bench.figures import MEASURES, Figure, workplace
from bench.slow_disk import measured_slowly

RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    """Measure, print a table, write the file; exit 0 also when a goal is missed."""
    only, sync_ms = _wanted()
    if sync_ms:
        return measured_slowly(sync_ms, ["--only", ",".join(only)])
    figures: dict[str, Figure] = {}
    for names, measure in MEASURES.items():
        if only and not only & set(names):
            continue
        started = time.perf_counter()
        with workplace() as folder:
            figures |= measure(folder)
        print(f"{', '.join(names)}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    _print(figures)
    document = {"machine": _machine(), "figures": figures}
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    return 0


def _wanted() -> tuple[set[str], float]:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="names of figures, separated by commas")
    parser.add_argument("--sync-ms", type=float, default=0, help="how much slower a sync is")
    given = parser.parse_args()
    wanted = {name for name in given.only.split(",") if name}
    known = {name for names in MEASURES for name in names}
    if wanted - known:
        parser.error(f"unknown: {', '.join(sorted(wanted - known))}; there are {sorted(known)}")
    if not 0 <= given.sync_ms <= 1_000:
        parser.error("a sync can be made slower by 0 to 1000 milliseconds")
    return wanted, given.sync_ms


def _machine() -> dict[str, object]:
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "slower_sync_ms": int(os.environ.get("BENCH_SYNC_US", "0")) / 1000,
    }


def _print(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        ratio = f"{figure.ratio:.2f}×" if figure.ratio is not None else ""
        against = f"of {figure.yardstick:,.1f}" if figure.yardstick is not None else ""
        mark = {True: "ok", False: "MISSED", None: ""}[figure.met]
        value = f"{figure.value:,.1f} {figure.unit}"
        print(f"{name:18} {value:>22} {ratio:>8} {against:18} {figure.goal or '':14} {mark}")


if __name__ == "__main__":
    sys.exit(main())
