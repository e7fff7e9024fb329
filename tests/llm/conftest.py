"""What the tests of models may ask for."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.llm.dialects import DIALECTS, Dialect
from tests.llm.fake_providers import FakeProvider, a_provider


@pytest.fixture(scope="session", autouse=True)
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one authority only: reading all of them is most of what a small test would do."""
    import certifi

    last_line = "-----END CERTIFICATE-----\n"
    first, _, _ = Path(certifi.where()).read_text("utf-8").partition(last_line)
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(f"{first}{last_line}", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    """Listen as a provider would."""
    async with a_provider() as provider:
        yield provider


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.provider)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    """Speak as each of the four providers in turn."""
    found: Dialect = request.param
    return found
