"""The table of `/api`."""

from typing import Final

from holdfast.http.api import messages, repos, sessions
from holdfast.http.table import Route

ROUTES: Final[tuple[Route, ...]] = (*repos.ROUTES, *sessions.ROUTES, *messages.ROUTES)
