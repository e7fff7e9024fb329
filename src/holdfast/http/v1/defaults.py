"""What holds where nobody has said otherwise, for those who cannot read the configuration."""

from typing import Final

from holdfast.domain.models import model_of
from holdfast.domain.tokens import Scope
from holdfast.domain.tools import CATALOGUE
from holdfast.http.answers import Answer
from holdfast.http.callers import may_see
from holdfast.http.table import Asked, NoQuery, Route
from holdfast.http.v1.defaults_forms import DefaultsForm


async def read_defaults(asked: Asked[NoQuery, None]) -> Answer:
    """Return what holds by default."""
    config = asked.house.config
    model = model_of(config.default_model)
    # Who may not know the file's name can still tell that it is one.
    shown = model.ref if may_see(asked.required_caller, model) else f"{model.provider}:{model.id}"
    tools = tuple(sorted(CATALOGUE))
    return Answer(content=DefaultsForm(model=shown, approval=config.approval, tools=tools))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/defaults",
        name="defaults",
        summary="Return what answers, what is asked about at most, and which tools there are.",
        act=read_defaults,
        needs=Scope.READ,
        gives={200: DefaultsForm},
    ),
)
