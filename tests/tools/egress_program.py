"""Asks for what must not be reached, so that somebody outside can count the connections.

    egress_program.py CASES [open]

Each case is a URL, the domains that are granted and what every name leads to. With `open` no
address is blocked, to show that a connection would be seen. Prints how often each code came.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from holdfast.tools.web.connection import WebSettings
from holdfast.tools.web.ssrf import blocked_reason
from tests.tools.http_hosts import code_of, granting, requested

Case = tuple[str, Sequence[str], Sequence[str]]


async def asked_for(cases: Sequence[Case], *, is_open: bool) -> None:
    connections = 0

    def note(event: str, _: object) -> None:
        nonlocal connections
        connections += event == "socket.connect"

    # A second witness, for where there is no strace.
    sys.addaudithook(note)
    codes: Counter[str] = Counter()
    for url, domains, addresses in cases:

        async def resolve(_: str, __: int, found: Sequence[str] = addresses) -> Sequence[str]:
            return found

        address_check = (lambda _: None) if is_open else blocked_reason
        given = WebSettings(resolve=resolve, address_check=address_check, time_limit=0.5)
        codes[code_of(await requested(given, granting(*domains), url=url))] += 1
    print(json.dumps({"codes": codes, "connections": connections}))


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    asyncio.run(asked_for(given, is_open="open" in sys.argv))
