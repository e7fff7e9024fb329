"""What tests of the file tools may ask for."""

from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier
from holdfast.tools.files.openat import KernelSupport, probe_kernel, walk_beneath
from tests.tools.file_fixture import Workshop


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """Work in the narrowest tier."""
    return Workshop(tmp_path)


@pytest.fixture(params=["kernel", "name by name"])
def kernel(request: pytest.FixtureRequest) -> KernelSupport:
    """Be this system's kernel, and one that cannot open beneath a directory by itself."""
    asked = probe_kernel()
    return asked if request.param == "kernel" else asked._replace(open_folder=walk_beneath)


@pytest.fixture(params=list(FsTier))
def tier(request: pytest.FixtureRequest) -> FsTier:
    """Be each tier."""
    return FsTier(request.param)
