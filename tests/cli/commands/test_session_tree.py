"""`holdfast sessions tree`: a session and all that it has started."""

from pathlib import Path

from holdfast import SessionRequest, sync
from tests.cli.conftest import Cli
from tests.tooled import a_config, says


def test_a_tree_is_shown_with_its_levels(cli: Cli, home: Path) -> None:
    with sync.open_holdfast(config=a_config(home, says("ok", repeat=9))) as hf:
        session = hf.open(request=SessionRequest(title="Plan"))
        child = hf.spawn(session.id, "holdfast", "Look")
        child.answer()
        hf.spawn(child.session_id, "holdfast", "Deeper").answer()

    shown = cli("sessions", "tree", session.id)
    as_json = cli("sessions", "tree", session.id, "--json")
    below = cli("sessions", "tree", child.session_id)

    lines = shown.out.splitlines()
    assert shown.code == 0
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4]
    assert ["Plan" in lines[0], "Look" in lines[1], "Deeper" in lines[2]] == [True] * 3
    assert [each["children"] for each in as_json.document["data"]] == [1, 1, 0]
    assert [len(line) - len(line.lstrip()) for line in below.out.splitlines()] == [0, 2]
