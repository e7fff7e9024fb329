"""The door to all models: who is behind it and what is said of the others."""

import pytest

from holdfast.domain.models import model_of
from holdfast.llm.router import Llms
from holdfast.ports import Failed, FailureKind
from tests.llm.builders import a_request, heard, said

pytestmark = pytest.mark.anyio


async def test_a_provider_that_is_not_here_is_a_failure_with_its_remedy() -> None:
    request = a_request(said("hi"), model="openai:some-model")

    assert await heard(Llms(), request) == [
        Failed(
            kind=FailureKind.AUTH,
            message="This version of Holdfast cannot ask the model's provider; "
            "choose offline:holdfast or scripted:FILE, for example with HOLDFAST_MODEL.",
        )
    ]


def test_a_provider_that_is_not_here_passes_the_check_because_it_may_come() -> None:
    Llms().check(model_of("openai:some-model"))
