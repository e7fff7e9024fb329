"""Every recorded wire becomes its golden list of drafts, without the program that once said it."""

import json
from pathlib import Path

from tests.acp.recordings import WIRES, golden, replayed, wires
from tests.marks import each_case


@each_case("wire", wires(), ids=lambda wire: str(wire.relative_to(WIRES)))
def test_a_recorded_wire_becomes_its_golden_drafts(wire: Path) -> None:
    expected = [json.loads(line) for line in golden(wire).read_text().splitlines()]

    assert json.loads(json.dumps(replayed(wire))) == expected


def test_there_are_wires_and_no_golden_list_without_one() -> None:
    lists = {path for path in WIRES.rglob("*") if path.name.endswith(".drafts.jsonl")}

    assert lists
    assert lists == {golden(wire) for wire in wires()}
