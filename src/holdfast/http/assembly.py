"""Putting the surface together: every route in one table, and what stands before it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from holdfast.http.api.routes import ROUTES as API_ROUTES
from holdfast.http.app import Application, Rules
from holdfast.http.callers import Callers
from holdfast.http.guard import Names, names_of
from holdfast.http.guests import Guest, mcp_route
from holdfast.http.house import House
from holdfast.http.metrics import Metrics
from holdfast.http.openapi.document import described
from holdfast.http.own import Probe, own_routes
from holdfast.http.streams import LIFE_SECONDS, Streams
from holdfast.http.table import Table
from holdfast.http.v1.routes import ROUTES as V1_ROUTES


@dataclass(frozen=True, kw_only=True)
class Door:
    """Where the server is reached: its port, further names it answers to, and its own name."""

    port: int
    names: tuple[str, ...] = ()
    has_tls: bool = False
    is_behind_proxy: bool = False
    version: str = "0"
    name: str = "request"
    luck: Callable[[], float] = lambda: 0.5
    life: float = LIFE_SECONDS
    # Who answers at the path of another protocol; without, there is no such path.
    guest: Guest | None = None


def application(house: House, probe: Probe, door: Door) -> Application:
    """Return the application; `probe` raises while the store cannot be written."""
    metrics = Metrics()
    names = names_of(
        door.port, door.names, has_tls=door.has_tls, is_behind_proxy=door.is_behind_proxy
    )
    table = table_of(probe, metrics, names, door.version, door.guest)
    rules = Rules(
        names=names,
        name=door.name,
        metrics=metrics,
        streams=Streams(house, metrics, door.luck, life=door.life),
    )
    return Application(house, table, Callers(house.tokens, names.origins), rules)


def table_of(
    probe: Probe, metrics: Metrics, names: Names, version: str, guest: Guest | None = None
) -> Table:
    """Return the table of all routes; one of them describes it."""

    # Described when it is asked for: the table contains the route that describes it.
    @cache
    def description() -> bytes:
        return described(table.routes, version)

    guests = () if guest is None else (mcp_route(guest),)
    own = own_routes(probe, metrics, description, names)
    table = Table((*own, *V1_ROUTES, *API_ROUTES, *guests))
    return table
