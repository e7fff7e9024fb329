"""A program that appends lines to a desk, one at a time, and says where each of them went."""

import json
from pathlib import Path

from holdfast import RunScope, open_holdfast
from tests.torture.clients.house import settings


async def main(home: str, writer: int, count: int) -> None:
    """Append so many lines, each of another length."""
    config = settings(Path(home))
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        for number in range(count):
            line = f'{{"writer":{writer},"number":{number},"pad":"{"x" * (number * 7 % 300)}"}}'
            done = await house.zones.append_output(house.owner, "shared", line)
            print("span", json.dumps([done.offset, done.offset + done.bytes_written]), flush=True)
