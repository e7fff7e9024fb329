"""The table of `/v1`."""

from typing import Final

from holdfast.http.table import Route
from holdfast.http.v1 import (
    agents,
    approvals,
    calls,
    costs,
    defaults,
    endings,
    history,
    media,
    messages,
    models,
    programs,
    search,
    sessions,
    streaming,
    timelines,
    zones,
)

ROUTES: Final[tuple[Route, ...]] = (
    *agents.ROUTES,
    *models.ROUTES,
    *sessions.ROUTES,
    *endings.ROUTES,
    *messages.ROUTES,
    *streaming.ROUTES,
    *media.ROUTES,
    *approvals.ROUTES,
    *calls.ROUTES,
    *costs.ROUTES,
    *search.ROUTES,
    *zones.ROUTES,
    *history.ROUTES,
    *timelines.ROUTES,
    *defaults.ROUTES,
    *programs.ROUTES,
)
