"""There is one list of tools of our own, and an installation has all of them, each once."""

from pathlib import Path

import pytest

from holdfast import keychain
from holdfast.config import Config
from holdfast.domain.tools import CATALOGUE
from holdfast.services.secrets import Secrets
from holdfast.tools.session_tools import read_output_tool
from holdfast.tools.toolbox import LocalToolbox
from holdfast.wiring import build_toolbox
from tests.marks import demands
from tests.stand_ins import SettableClock


@demands("S0-160")
def test_an_installation_has_every_tool_of_the_catalogue(home: Path) -> None:
    made = build_toolbox(Config(home=home), Secrets(keychain, {}), SettableClock())

    assert made.names == CATALOGUE


@demands("S0-160")
def test_a_tool_that_is_registered_twice_is_an_error_at_the_start() -> None:
    with pytest.raises(ValueError, match="read_output is registered twice"):
        LocalToolbox((read_output_tool(), read_output_tool()))
