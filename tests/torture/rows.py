"""The rows of the proof, as values: what is done, which promise it proves, who brings it.

What a row does is in the test that carries `@proves`; this module only knows that it exists.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).resolve().parent / "rows.toml"
# `quick` is `make test`: of each row one test, which the row names. The others run whole rows.
QUICK = "quick"
LEVELS = (QUICK, "test", "torture", "release")


@dataclass(frozen=True)
class Row:
    """One row; `planned` names the capability that brings its test, empty once it is proven.

    `quick` names the test that stands for the row in `make test`, as `marks` names tests.
    """

    id: str
    title: str
    promise: tuple[str, ...]
    needs: tuple[str, ...]
    test: str
    torture: str
    release: str
    planned: str = ""
    quick: str = ""

    def size(self, level: str) -> str:
        """Return how often the row is done at a level; a dash where it is not scheduled."""
        sizes = {"test": self.test, "torture": self.torture, "release": self.release}
        return sizes.get(level, self.test)


@cache
def rows() -> tuple[Row, ...]:
    """Return every row in the order of the file; a missing or unknown key is a TypeError."""
    listed = tomllib.loads(FILE.read_text("utf-8"))["row"]
    return tuple(
        Row(**(row | {"promise": tuple(row["promise"]), "needs": tuple(row["needs"])}))
        for row in listed
    )


def row_named(id: str) -> Row:
    """Return the row with this id; another id is a LookupError."""
    for row in rows():
        if row.id == id:
            return row
    raise LookupError(f"There is no row {id}; add it to {FILE.name} first.")
