"""Standard input and output as streams: pipes, files, and what else would write between them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.acp.rpc import stdio as rpc_stdio

pytestmark = pytest.mark.anyio


class Desk:
    """Three descriptors in the place of the standard ones, and what lies behind them."""

    def __init__(self, source: int, output: int, error: int) -> None:
        self.source, self.output, self.error = source, output, error


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Desk, int, int, int]]:
    """Take pipes for the standard streams; yield them with their other ends."""
    (source, into), (out, output), (err, error) = os.pipe(), os.pipe(), os.pipe()
    yield _installed(monkeypatch, source, output, error), into, out, err
    for each in (source, out, output, err, error):
        os.close(each)


def _installed(monkeypatch: pytest.MonkeyPatch, source: int, output: int, error: int) -> Desk:
    for name, each in (("_INPUT", source), ("_OUTPUT", output), ("_ERROR", error)):
        monkeypatch.setattr(rpc_stdio, name, each)
    return Desk(source, output, error)


async def test_pipes_carry_lines_and_nothing_else_comes_between(
    pipes: tuple[Desk, int, int, int],
) -> None:
    desk, into, out, err = pipes
    os.write(into, b"hello\n")
    reader, writer = await rpc_stdio.standard_streams()

    assert await reader.read(100) == b"hello\n"
    writer.write(b"answer\n")
    await writer.drain()
    # What a library prints goes elsewhere, and a child reads nothing.
    os.write(desk.output, b"chatter\n")
    assert (os.read(out, 100), os.read(err, 100)) == (b"answer\n", b"chatter\n")
    assert os.read(desk.source, 100) == b""
    writer.close()
    await writer.wait_closed()
    os.close(into)
    assert await reader.read(100) == b""


async def test_files_are_read_and_written_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(b"hello\n")
    source = os.open(tmp_path / "in", os.O_RDONLY)
    output = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    error = os.open(tmp_path / "err", os.O_WRONLY | os.O_CREAT)
    desk = _installed(monkeypatch, source, output, error)
    reader, writer = await rpc_stdio.standard_streams()

    assert [await reader.read(100), await reader.read(100)] == [b"hello\n", b""]
    writer.write(b"answer\n")
    await writer.drain()
    os.write(desk.output, b"chatter\n")
    writer.close()
    await writer.wait_closed()

    assert (tmp_path / "out").read_bytes() == b"answer\n"
    assert (tmp_path / "err").read_bytes() == b"chatter\n"
    assert isinstance(reader, rpc_stdio.FileReader)
    for each in (source, output, error, reader._descriptor):
        os.close(each)
