"""R42: whatever Schemathesis makes of the document, the server does what the document says."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from holdfast.domain.tokens import Scope
from holdfast.http.responses import Response
from holdfast.http.routing import NoQuery, Route, RouteRequest
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.surface import examined, served

pytestmark = pytest.mark.slow

PHASES = {"examples", "coverage", "fuzzing", "stateful"}
CHECKS = {
    "content_type_conformance",
    "ensure_resource_availability",
    "ignored_auth",
    "negative_data_rejection",
    "not_a_server_error",
    "positive_data_acceptance",
    "refusals_are_documented",
    "response_headers_conformance",
    "response_schema_conformance",
    "status_code_conformance",
    "unsupported_method",
    "use_after_free",
    "what_is_well_formed_is_not_called_ill_formed",
}


@proves("R42")
def test_every_route_does_what_the_document_says(
    tmp_path: Path, sized: Sized, seed: int, tell: Tell
) -> None:
    examples = sized(quick=1, test=5, torture=50, release=5_000)

    # Agents themselves, which have every kind of answer.
    paths = r"^/v1/agents(/\{agent_id\})?$" if sized.is_quick else ""

    with served(tmp_path) as address:
        found = examined(address, examples=examples, seed=seed, paths=paths)

    tell(
        f"{len(found.operations)} operations, {found.requests:,} requests, "
        f"{sum(found.checks.values()):,} checks, {len(found.failures)} failures"
    )
    assert not found.failures, found.told
    assert found.errors == []
    assert {name: found.phases[name] for name in PHASES} == dict.fromkeys(PHASES, "success")
    assert set(found.checks) >= CHECKS
    assert not {status for status in found.statuses if status >= 500}
    assert set(found.statuses) >= {200, 201, 204, 304, 400, 401, 404, 405, 409}


class Sum(Struct, frozen=True):
    """A number."""

    sum: int


class Wished(Struct, frozen=True, forbid_unknown_fields=True):
    """A number that the type does not hold to what the document says of it."""

    wish: Annotated[int, Meta(extra_json_schema={"minimum": 10, "maximum": 20})] = 15


async def lying(_: RouteRequest[Any, Any]) -> Response:
    """Answer with a word where the document says a number."""
    return Response(content={"sum": "four"})


async def broken(_: RouteRequest[Any, Any]) -> Response:
    """Fail in a way nobody has thought of."""
    raise RuntimeError("broken")


async def silent(_: RouteRequest[Any, Any]) -> Response:
    """Answer with a status that is not in the document."""
    return Response(status=202, content=Sum(sum=4))


async def summed(_: RouteRequest[Any, Any]) -> Response:
    """Answer as the document says."""
    return Response(content=Sum(sum=4))


def a_route(handler: Any, query: type[Struct] = NoQuery, **rest: Any) -> Route:
    return Route(
        method="GET",
        path="/v1/wrong",
        name="wrong",
        handler=handler,
        needs=Scope.READ,
        query=query,
        responses={200: Sum},
        **rest,
    )


@proves("R42")
@pytest.mark.parametrize(
    ("route", "check"),
    [
        (a_route(broken), "not_a_server_error"),
        (a_route(lying), "response_schema_conformance"),
        (a_route(silent), "status_code_conformance"),
        (a_route(summed, Wished), "negative_data_rejection"),
        (a_route(summed, response_headers={200: ("location",)}), "response_headers_conformance"),
        (a_route(summed, media_type="text/plain"), "content_type_conformance"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_route_that_does_something_else_is_found(
    tmp_path: Path, seed: int, route: Route, check: str
) -> None:
    with served(tmp_path, [route]) as address:
        found = examined(address, examples=5, seed=seed)

    assert check in found.kinds
