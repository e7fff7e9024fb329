"""Clients under load, seen from outside: started and killed by number, waited for by their records.

How much a client does in a second is the machine's business. Whoever needs it to have done
something waits for that, and not for time to pass.
"""

import random
from pathlib import Path
from typing import Any

from tests.torture.attempts import Attempt, read_attempts
from tests.torture.crew import Crew, wait_until
from tests.torture.nursery import Process


class Loads:
    """The clients of a row; the record of number 3 is `c3.jsonl`, whoever lived under it."""

    def __init__(self, crew: Crew, folder: Path, luck: random.Random, **options: Any) -> None:
        """`options` are those of every client: its home, shared sessions and a fault."""
        self._crew = crew
        self._folder = folder
        self._luck = luck
        self._options = {"shared": []} | options
        self._before: dict[int, int] = {}
        self.running: dict[int, Process] = {}

    def start(self, *numbers: int) -> None:
        """Start clients; one that lived before repeats what it was not told."""
        for number in numbers:
            self._before[number] = len(self._attempts(number))
            self.running[number] = self._crew.start(
                "load",
                name=self._folder / f"c{number}",
                seed=self._luck.randrange(1 << 32),
                **self._options,
            )

    def wait_for_a_yes(self, *numbers: int, verb: str = "") -> None:
        """Wait until each of the clients was told yes since it was started."""
        for number in numbers:
            wait_until(lambda number=number: self._was_told(number, verb))  # type: ignore[misc]

    def kill(self, *numbers: int) -> None:
        """Kill clients where they are; each must have lived until now."""
        for number in numbers:
            self._require_alive(number)
            self.running[number].kill()
            self.running[number].wait()

    def _attempts(self, number: int) -> list[Attempt]:
        return read_attempts([self._folder / f"c{number}.jsonl"])

    def _was_told(self, number: int, verb: str) -> bool:
        self._require_alive(number)
        since = self._attempts(number)[self._before[number] :]
        return any(each.acknowledged and each.verb.startswith(verb) for each in since)

    def _require_alive(self, number: int) -> None:
        process = self.running[number]
        assert process.poll() is None, self._crew.log_of(process)
