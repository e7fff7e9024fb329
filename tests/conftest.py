"""What every test may ask for."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, the loop we ship on."""
    return "asyncio"
