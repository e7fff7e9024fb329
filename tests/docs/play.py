"""Plays a block: runs what it holds and says what was not as the page shows."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import NOT_RUN, Block, Command, commands, is_as_shown
from tests.docs.shell import Shell


def play(block: Block, shell: Shell, folder: Path) -> Iterator[str]:
    """Run a block and yield what was not as the page says."""
    for command in _commands(block, folder):
        if NOT_RUN.fullmatch(command.text):
            continue
        where = f"{block.page}:{command.line} $ {command.text}"
        status, output = shell.run(command.text)
        if status != 0:
            yield f"{where}\nended with {status}:\n{output}"
        elif command.shown is not None and not is_as_shown(command.shown, output):
            yield f"{where}\nshould print:\n{command.shown}\nand printed:\n{output}"


def _commands(block: Block, folder: Path) -> Iterator[Command]:
    """Yield what it takes to run a block; nothing for one that is only shown or read."""
    if block.kind == "console":
        yield from commands(block)
    if block.kind == "sh":
        lines = [line for line in block.content.splitlines() if not NOT_RUN.fullmatch(line)]
        script = "\n".join(lines)
        yield Command(block.line, f"set -e\n{script}\nset +e", None)
    if block.kind == "python":
        file = folder / f"block_{block.line}.py"
        file.write_text(block.content, "utf-8")
        yield Command(block.line, f"python -W default {shlex.quote(str(file))}", None)
