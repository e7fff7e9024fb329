"""Well-known agents that somebody else wrote, as far as they are on the server's machine."""

from typing import Final

from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer
from holdfast.http.table import Asked, NoQuery, Route
from holdfast.http.v1.programs_forms import KnownProgramList, program_form


async def list_programs(asked: Asked[NoQuery, None]) -> Answer:
    """Look for the programs; a version that is told late is not waited for."""
    found = await asked.house.programs()
    return Answer(content=KnownProgramList(tuple(map(program_form, found))))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/programs",
        name="programs",
        summary="Look for well-known agents on the server's machine.",
        act=list_programs,
        # Where programs lie on a machine is for those who look after it.
        needs=Scope.ADMIN,
        gives={200: KnownProgramList},
    ),
)
