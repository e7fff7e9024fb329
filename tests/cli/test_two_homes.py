"""Two homes that share one database: each server has a local token of its own."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import open_holdfast
from holdfast.domain.ids import LOCAL_OWNER
from holdfast.domain.tokens import Token, TokenKind
from holdfast.execution.coordinator import RunScope as Turns
from tests.cli.processes import beside, running
from tests.cli.server_probe import card_of, got
from tests.postgres import Databases

pytestmark = pytest.mark.slow

VARIABLE = "HOLDFAST_DATABASE_URL"
ACCEPTED, REFUSED = 200, 401


@pytest.fixture
def shared(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A new database, for servers and for this process."""
    url = databases.fresh()
    monkeypatch.setenv(VARIABLE, url)
    return {VARIABLE: url}


@contextmanager
def serving(home: Path, shared: dict[str, str]) -> Iterator[str]:
    """Run a server; give its address."""
    with running(home, "serve", "--port", "0", "--json", more=shared) as server:
        yield card_of(server)["url"]


def secret_in(home: Path) -> str:
    return (home / "token").read_text().strip()


def asked(url: str, home: Path) -> int:
    """Return the status of a request with the local token of a home."""
    return got(f"{url}/v1/agents", secret=secret_in(home))[0]


@pytest.mark.torture
def test_the_start_of_a_second_server_leaves_the_first_ones_token_valid(
    tmp_path: Path, shared: dict[str, str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with ExitStack() as stack:
        first = stack.enter_context(serving(one, shared))
        second = stack.enter_context(serving(two, shared))
        with serving(one, shared):
            # Believed no longer than two seconds, so each server looks at the store again.
            statuses = [asked(url, home) for url in (first, second) for home in (one, two)]

    assert secret_in(one) != secret_in(two)
    assert statuses == [ACCEPTED] * 4


@pytest.mark.torture
def test_the_token_of_an_older_program_stays_valid_beside_a_new_home(
    tmp_path: Path, shared: dict[str, str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    asyncio.run(made_without_a_home(one))
    before = secret_in(one)

    with serving(two, shared), serving(one, shared) as url:
        statuses = [asked(url, one), asked(url, two)]

    assert statuses == [ACCEPTED, ACCEPTED]
    assert secret_in(one) == before
    assert [each.home != "" for each in asyncio.run(live_local(one))] == [True, True]


def test_a_removed_token_file_revokes_the_token_of_that_home_alone(
    tmp_path: Path, shared: dict[str, str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with serving(one, shared), serving(two, shared):
        leaked = secret_in(one)
    (one / "token").unlink()

    with serving(one, shared) as url:
        old = got(f"{url}/v1/agents", secret=leaked)[0]
        statuses = [asked(url, one), asked(url, two)]

    assert (old, statuses) == (REFUSED, [ACCEPTED, ACCEPTED])


@pytest.mark.torture
def test_revoking_the_token_of_another_home_leaves_ones_own(
    tmp_path: Path, shared: dict[str, str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with serving(one, shared) as url, serving(two, shared):
        own = secret_in(one)
        theirs = next(each for each in asyncio.run(live_local(one)) if each.home == home_id(two))
        revoked = beside(one, "token", "revoke", theirs.id, more=shared)
        statuses = [asked(url, one)]
    with serving(two, shared) as url:
        statuses += [asked(url, one), asked(url, two)]

    assert (revoked.returncode, revoked.stdout) == (
        0,
        f"Revoked token {theirs.id} ({theirs.name}).\n",
    )
    assert (secret_in(one), statuses) == (own, [ACCEPTED] * 3)


def test_a_home_id_that_is_a_link_is_refused(tmp_path: Path, shared: dict[str, str]) -> None:
    one = tmp_path / "one"
    one.mkdir()
    (tmp_path / "elsewhere").write_text("not-ours\n")
    (one / "home-id").symlink_to(tmp_path / "elsewhere")

    refused = beside(one, "serve", "--port", "0", "--json", more=shared)

    assert refused.returncode != 0
    assert "home-id is a link, so its id is not used" in refused.stderr


def home_id(home: Path) -> str:
    return (home / "home-id").read_text().strip()


async def live_local(home: Path) -> list[Token]:
    """Return the local tokens that are not revoked."""
    async with open_holdfast(home, scope=Turns.NONE) as house:
        found = await house.tokens.list(LOCAL_OWNER)
    return [each for each in found if each.kind is TokenKind.LOCAL and not each.revoked_at]


async def made_without_a_home(home: Path) -> None:
    """Make a local token as a program did that knew of one home only."""
    async with open_holdfast(home, scope=Turns.NONE) as house:
        token, _ = await house.tokens.ensure_local()

        async def forget_home(tx: Any) -> None:
            await tx.tokens.save(replace(token, home="", name="local"))

        await house.store.write(forget_home)
    (home / "home-id").unlink()
