"""R56: one small thing is changed in storage, journal, turns or policy, and a test notices."""

import random
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.mutants import TARGETS, Mutant, Nursery, mutants_of

pytestmark = pytest.mark.slow

SOURCE = """
def may(age, is_known):
    if not is_known:
        raise ValueError
    return age >= 18 and is_known is True
"""
# Of a sample less is asked, because some of the few may be mutants that change nothing.
SHARE_OF_ALL, SHARE_OF_SOME = 0.9, 0.7


@proves("R56")
def test_most_mutants_are_killed(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell, level: str
) -> None:
    everyone = every_mutant()
    count = sized(test=1, torture=20, release=len(everyone))
    chosen = luck.sample(everyone, count)
    nursery = Nursery(tmp_path)
    # Otherwise nothing would be mutated, or a test that fails by itself would kill every mutant.
    assert nursery.is_killed(Mutant("services/approvals.py", 1, "it cannot be read", "1 / 0"))
    assert [name for name in {each.module for each in chosen} if not nursery.is_sound(name)] == []

    survivors = [str(each) for each in chosen if not nursery.is_killed(each)]

    tell(
        f"{count - len(survivors)} of {count} mutants killed, of {len(everyone)} that there are; "
        f"left: {', '.join(survivors) or 'none'}"
    )
    share = SHARE_OF_ALL if level == "release" else SHARE_OF_SOME
    assert len(survivors) <= count * (1 - share), survivors


@proves("R56")
def test_a_sharp_test_kills_every_mutant_and_a_blunt_one_none() -> None:
    mutants = list(mutants_of("may.py", SOURCE))

    assert [each.what for each in mutants] == [
        "a not is dropped",
        "nothing is raised",
        "and and or change places",
        "GtE becomes Gt",
        "Is becomes IsNot",
        "a number is one more",
        "true and false change places",
    ]
    assert [each.what for each in mutants if is_sharp(each)] == [each.what for each in mutants]
    assert [each.what for each in mutants if is_blunt(each)] == []


def is_sharp(mutant: Mutant) -> bool:
    """Tell whether a test of every edge notices."""
    names: dict[str, object] = {}
    exec(mutant.source, names)
    may = names["may"]
    assert callable(may)
    try:
        may(18, False)
    except ValueError:
        return [may(18, True), may(17, True), may(19, 1)] != [True, False, False]
    except BaseException:  # noqa: BLE001 — a mutant may do anything
        return True
    return True


def is_blunt(mutant: Mutant) -> bool:
    """Tell whether a test that asks only whether it can be read notices."""
    compile(mutant.source, mutant.module, "exec")
    return False


def every_mutant() -> list[Mutant]:
    """Return all mutants of all modules that are mutated."""
    package = ROOT / "src" / "holdfast"
    return [
        mutant
        for module in TARGETS
        for mutant in mutants_of(module, (package / module).read_text("utf-8"))
    ]
