"""The door to all models: picks by provider who answers a request."""

from collections.abc import AsyncGenerator, Mapping

from holdfast.domain.models import OFFLINE, Model
from holdfast.llm.offline import Offline
from holdfast.llm.scripted import Scripted
from holdfast.ports import Failed, FailureKind, LlmDelta, LlmRequest


class Llms:
    """Every model that can be asked, as one `Llm`."""

    def __init__(self) -> None:
        self._providers: Mapping[str, Offline | Scripted] = {
            "offline": Offline(),
            "scripted": Scripted(),
        }

    def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the answer of the request's provider; one that is not here is a failure."""
        provider = self._providers.get(request.model.provider)
        return provider.stream(request) if provider else _absent()

    def check(self, model: Model) -> None:
        """Refuse a faulty script and a mistaken name; a provider without a key may get one yet."""
        # No remark about the others: a session may open today with the model of tomorrow's key.
        if provider := self._providers.get(model.provider):
            provider.check(model)


async def _absent() -> AsyncGenerator[LlmDelta, None]:
    # The provider is not named, because a mistyped model may be a key pasted by accident.
    yield Failed(
        kind=FailureKind.AUTH,
        message="This version of Holdfast cannot ask the model's provider; "
        f"choose {OFFLINE} or scripted:FILE, for example with HOLDFAST_MODEL.",
    )
