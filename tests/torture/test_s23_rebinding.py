"""S23: whatever a name leads to the second time, and wherever a redirect points, nobody gets in."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import pytest

from holdfast.domain.tools import Grant
from holdfast.ports.tools import CallOutcome, ToolWorkspace
from tests.marks import proves
from tests.tools.http_hosts import (
    HOST,
    OTHER,
    Heard,
    Host,
    a_place,
    code_of,
    requested,
    says,
    serving,
    settings,
)
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

# Stands for the world: the one address that the judge of this test lets through.
WORLD = "127.0.0.2"
DENIED = ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254", "fe80::1%lo")


@dataclass
class Names:
    """A resolver that has an answer for each time it is asked."""

    answers: Iterator[Sequence[str]]
    asked: list[str] = field(default_factory=list)

    async def resolve(self, host: str, _: int) -> Sequence[str]:
        self.asked.append(host)
        return next(self.answers)


@dataclass
class Trial:
    """One machine in the world, and one at home on the same port that nobody may reach."""

    world: Host
    home: Host
    luck: random.Random

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.world.port}/"

    @property
    def place(self) -> ToolWorkspace:
        return a_place(Grant(domains=tuple(f"{name}:{self.world.port}" for name in (HOST, OTHER))))

    async def ask(self, names: Names, url: str | None = None, **changes: Any) -> CallOutcome:
        given = settings(**{"resolve": names.resolve, "address_check": judge, **changes})
        return await requested(given, self.place, url=url or self.url)


def judge(address: str) -> str | None:
    """Let the world through, and nobody else."""
    return None if address == WORLD else "not the world"


async def changing(trial: Trial) -> str:
    """Have an answer that is good once: the moment it is looked up again it leads home."""
    names = Names(chain([(WORLD,)], repeat(("127.0.0.1",))))
    code = code_of(await trial.ask(names))
    assert names.asked == [HOST]
    return code


async def alternating(trial: Trial) -> str:
    """Ask twice: the first time it leads into the world, the second time home."""
    names = Names(iter([(WORLD,), (trial.luck.choice(DENIED),)]))
    first, second = await trial.ask(names), await trial.ask(names)
    assert code_of(first) == "ok"
    return code_of(second)


async def many(trial: Trial) -> str:
    """Hide one denied address among many good ones."""
    answer = [WORLD] * trial.luck.randint(1, 40)
    answer.insert(trial.luck.randrange(len(answer) + 1), trial.luck.choice(DENIED))
    return code_of(await trial.ask(Names(repeat(answer))))


async def another_kind(trial: Trial) -> str:
    """Lead into the world by IPv4 and home by IPv6."""
    answer = (WORLD, trial.luck.choice(["::1", "::ffff:127.0.0.1", "fe80::1", "fd00::1"]))
    return code_of(await trial.ask(Names(repeat(answer))))


async def alias(trial: Trial) -> str:
    """Be another name for a name at home, as an alias in a zone of one's own can be."""
    zone = {HOST: "alias.example", "alias.example": "db.internal", "db.internal": "127.0.0.1"}
    name = HOST
    while name in zone:
        name = zone[name]
    return code_of(await trial.ask(Names(repeat((name,)))))


async def nothing_first(trial: Trial) -> str:
    """Have no answer at first, and then one that leads home."""
    names = Names(iter([(), (trial.luck.choice(DENIED),)]))
    assert code_of(await trial.ask(names)) == "error/failed"
    return code_of(await trial.ask(names))


async def redirected(trial: Trial) -> str:
    """Follow a chain of redirects as a model would: each hop is a call, the last one leads home."""
    hops = trial.luck.randint(1, 10)
    names = Names(chain([(WORLD,)] * hops, repeat(("127.0.0.1",))))
    url, codes = trial.url + str(hops), []
    while True:
        done = await trial.ask(names, url)
        codes.append(code_of(done))
        if done.result is None:
            break
        assert done.result["status"] == 302
        url = done.result["headers"]["location"]
    assert codes == ["ok"] * hops + ["denied/address_blocked"]
    return codes[-1]


async def sent_away(trial: Trial) -> str:
    """Be redirected to what a URL cannot name at all."""
    aims = ["http://127.0.0.1/", "https://127.0.0.1/", "https://[::1]/", "https://localhost/"]
    aims += [f"http://{HOST}/", f"https://x@{OTHER}/", "file:///etc/passwd", "//127.0.0.1/"]
    return code_of(await trial.ask(Names(repeat((WORLD,))), trial.luck.choice(aims)))


KINDS: Sequence[tuple[Callable[[Trial], Any], set[str]]] = (
    (changing, {"ok"}),
    (alternating, {"denied/address_blocked"}),
    (many, {"denied/address_blocked"}),
    (another_kind, {"denied/address_blocked"}),
    (alias, {"denied/address_blocked"}),
    (nothing_first, {"denied/address_blocked"}),
    (redirected, {"denied/address_blocked"}),
    (sent_away, {"denied/insecure_url", "denied/domain_not_allowed"}),
)


@proves("S23")
def test_no_answer_and_no_redirect_leads_to_a_denied_address(
    luck: random.Random, sized: Sized, tell: Tell
) -> None:
    trials = sized(quick=30, test=100, torture=500, release=1_000)

    codes, world, home = asyncio.run(tried(trials, luck))

    tell(f"{trials} trials {dict(codes)}, {world} connections outside, {home} at home")
    assert world > 0
    assert home == 0


@proves("S23")
def test_a_connection_home_would_be_seen(luck: random.Random) -> None:
    async def open_door() -> int:
        async with machines(luck) as trial:
            names = Names(chain([(WORLD,)], repeat(("127.0.0.1",))))
            for _ in range(2):
                await trial.ask(names, address_check=lambda _: None)
            return trial.home.connections

    assert asyncio.run(open_door()) == 1


async def tried(trials: int, luck: random.Random) -> tuple[Counter[str], int, int]:
    """Go through all kinds in turn and return the answers and who was reached."""
    codes: Counter[str] = Counter()
    async with machines(luck) as trial:
        for number in range(trials):
            kind, expected = KINDS[number % len(KINDS)]
            code = await kind(trial)
            assert code in expected, f"{kind.__name__}: {code}"
            codes[code] += 1
        return codes, trial.world.connections, trial.home.connections


@asynccontextmanager
async def machines(luck: random.Random) -> AsyncIterator[Trial]:
    """Run the world and the home on one port, each at an address of its own."""
    async with serving(says()) as home:

        async def redirect(heard: Heard, writer: asyncio.StreamWriter) -> None:
            left = heard.line.rpartition("/")[2]
            aim = (
                f"https://{luck.choice([HOST, OTHER])}:{home.port}/{int(left) - 1}" if left else ""
            )
            headers = [f"Location: {aim}"] if left else []
            await says(b"", status="302 Found" if left else "200 OK", headers=headers)(
                heard, writer
            )

        async with serving(redirect, at=(WORLD, home.port)) as world:
            yield Trial(world=world, home=home, luck=luck)
