"""What every test may ask for."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from tests.new_homes import furnish
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine

# A shell has what runs in the background ignore Ctrl-C and Ctrl-\, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# No deadline, because a machine may be slow, and the same examples in every run, because a red run
# has to be red again. `make torture` looks at more of them.
settings.register_profile("test", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("torture", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("test")


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, the loop we ship on."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def bare_environment() -> Iterator[None]:
    """Take away what the machine's own environment would tell Holdfast, its keychain included."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("HOLDFAST_", "AGENT_", "DBUS_")):
                patch.delenv(name)
        yield


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Name a home that does not exist yet; a home takes space, so none is kept."""
    yield tmp_path / "home"
    shutil.rmtree(tmp_path)


@pytest.fixture
def clock() -> SettableClock:
    """Stand still until the test moves time."""
    return SettableClock()


@pytest.fixture
def machine() -> StandInMachine:
    """Be a process that only the test can declare dead."""
    return StandInMachine()


@pytest.fixture
def outside(clock: SettableClock, machine: StandInMachine) -> Environment:
    """Bring time, randomness and a machine that the test controls."""
    return Environment(clock=clock, randomness=SeededRandomness(), machine=machine)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stores opened without encryption, where rows are guarded by checksums."""
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")


@pytest.fixture
async def holdfast(home: Path, outside: Environment) -> AsyncIterator[Holdfast]:
    """Open a home whose turns are played by the offline model."""
    async with open_holdfast(furnish(home), outside=outside) as opened:
        yield opened


@pytest.fixture
async def quiet(home: Path, outside: Environment) -> AsyncIterator[Holdfast]:
    """Open a home in which everything is written down and no turn is played."""
    async with open_holdfast(furnish(home), outside=outside, scope=RunScope.NONE) as opened:
        yield opened
