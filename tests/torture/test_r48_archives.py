"""R48: an archive is taken at no door, whatever it is called, and nothing of it gets out."""

import io
import tarfile
import zipfile
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, cli, cli_without_home
from tests.marks import proves
from tests.torture.archives import ESCAPED, archives, tarred, tree, zipped
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

__all__ = ["cli", "cli_without_home"]

# Every door that takes a file or a folder of somebody else's; FILE stands for the archive.
DOORS = (
    ("agents", "import", "FILE"),
    ("chat", "hello", "--agent", "FILE"),
    ("chat", "hello", "--model", "scripted:FILE"),
    ("workflow", "validate", "FILE"),
    ("workflow", "format", "FILE", "--write"),
    ("workflow", "run", "FILE"),
    ("import", "cursor-memory", "FILE"),
    ("import", "block-zones", "FILE"),
    ("history", "submit", "FILE"),
    ("restore", "FILE", "--force"),
)
NAMES = ("packed.agent.yaml", "packed.relavium.yaml", "packed.json", "packed.zip", "packed.tar.gz")


@proves("R48")
def test_no_archive_is_taken_at_any_door(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sized: Sized, tell: Tell
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    cli("chat", "hello")
    doors = sized(quick=1, test=3, torture=len(DOORS))
    wrong = []
    packed = list(archives())
    for number, (name, content) in enumerate(packed):
        file = work / NAMES[number % len(NAMES)]
        file.write_bytes(content)
        before = tree(work)
        # In turn, so that every door is met by archives of every kind.
        for door in islice(cycle(DOORS), number, number + doors):
            words = [word.replace("FILE", f"./{file.name}") for word in door]
            ran = cli(*words, "--json")
            if ran.code in {0, 70}:
                wrong.append(f"{name} at {' '.join(door)}: {ran.code} {ran.out[:100]}")
        if tree(work) != before or file.read_bytes() != content:
            wrong.append(f"{name}: something was written")
        file.unlink()

    tell(f"{len(packed)} archives, each at {doors} of {len(DOORS)} doors")
    assert wrong == []
    assert not list(tmp_path.rglob(f"{ESCAPED}*"))
    assert not Path("/", ESCAPED).exists()
    assert len(cli("sessions", "list", "--json").document["data"]) == 1
    assert [each["slug"] for each in cli("agents", "list", "--json").document["data"]] == [
        "holdfast"
    ]


@proves("R48")
def test_a_door_that_unpacks_would_be_seen(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    before = tree(tmp_path)
    members = [(f"../{ESCAPED}", b"x")]

    with tarfile.open(fileobj=io.BytesIO(tarred(members))) as archive:
        archive.extractall(inner, filter="fully_trusted")
    with zipfile.ZipFile(io.BytesIO(zipped([("sessions/a.json", b"{}")]))) as other:
        other.extractall(inner)

    assert set(tree(tmp_path)) - set(before) == {ESCAPED, "inner/sessions/a.json"}
