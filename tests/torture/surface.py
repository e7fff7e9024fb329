"""A real server on a real socket, and Schemathesis against what it says of itself."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast import Holdfast, open_holdfast
from holdfast.cli.command import run_on_loop
from holdfast.config import Acp, Config
from holdfast.http.app import AppContext, Application, build_route_table
from holdfast.http.auth import Authenticator
from holdfast.http.mcp_mount import McpHandler
from holdfast.http.metrics import Metrics
from holdfast.http.openapi.document import encode_document
from holdfast.http.routing import Route, RouteTable
from holdfast.http.security import server_names
from holdfast.http.server import listen, serve, url_of
from holdfast.http.sse import OpenStreams
from holdfast.http.system_routes import system_routes
from holdfast.mcp.http_transport import McpEndpoint
from holdfast.workers import service as workers
from tests.http.v1.client import a_repository
from tests.stand_ins import PATIENCE

# Streams end soon, because nobody here waits for the next event.
STREAM_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Address:
    """Where a server is, and how to say who asks."""

    url: str
    secret: str
    repository: Path


@contextmanager
def served(folder: Path, routes: Sequence[Route] | None = None) -> Iterator[Address]:
    """Serve a home of its own from a thread of its own; `routes` stand in for the real ones."""
    server = _Server(folder, routes)
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        yield server.address()
    finally:
        server.stop()
        thread.join(PATIENCE)


class _Server:
    def __init__(self, folder: Path, routes: Sequence[Route] | None) -> None:
        self._folder = folder
        self._routes = routes
        self._ready = threading.Event()
        self._found: Address | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def run(self) -> None:
        run_on_loop(self._serve())

    def address(self) -> Address:
        assert self._ready.wait(PATIENCE)
        assert self._found is not None
        return self._found

    def stop(self) -> None:
        assert self._loop is not None
        assert self._stopping is not None
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        root = self._folder / "root"
        repository = a_repository(root / "repository")
        config = Config(home=self._folder / "home", workspace_root=root, acp=Acp(agent="holdfast"))
        with listen("127.0.0.1", 0) as listener:
            async with (
                open_holdfast(config=config) as house,
                McpEndpoint(house, "0") as guest,
            ):
                _, secret = await house.tokens.ensure_local()
                self._found = Address(url_of(listener), secret, repository)
                port = listener.getsockname()[1]
                app = _application(house, port, self._routes, guest)
                await serve(app, listener, ready=self._ready.set, stop=self._stopping)


def _application(
    house: Holdfast, port: int, routes: Sequence[Route] | None, guest: McpHandler
) -> Application:
    metrics, names = Metrics(), server_names(port)

    async def well() -> None:
        """Be a store that can be written."""

    table = build_route_table(well, metrics, names, "0", guest)
    if routes is not None:
        own = system_routes(well, metrics, lambda: encode_document(routes, "0"), names)
        table = RouteTable((*own, *routes))
    # As streams, requests that wait come to an end soon.
    workers.WAIT_LONGEST = STREAM_SECONDS  # type: ignore[misc]
    streams = OpenStreams(house, metrics, lambda: 0.5, life=STREAM_SECONDS)
    rules = AppContext(names=names, name="request", metrics=metrics, streams=streams)
    return Application(house, table, Authenticator(house.tokens), rules)


@dataclass
class Findings:
    """What a run has asked, what it was answered, and what was wrong with that."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    operations: set[str] = field(default_factory=set)
    phases: dict[str, str] = field(default_factory=dict)
    checks: Counter[str] = field(default_factory=Counter)
    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def told(self) -> str:
        """Return what was wrong, to be read."""
        return "\n\n".join(f"{' · '.join(key)}\n{told}" for key, told in self.failures.items())

    @property
    def kinds(self) -> set[str]:
        """Return the checks that failed."""
        return {name for name, _, _ in self.failures}


def examined(address: Address, *, examples: int, seed: int, paths: str = "") -> Findings:
    """Run all phases and checks against a server's own description, or those paths of it."""
    import schemathesis
    from schemathesis.config import SchemathesisConfig
    from schemathesis.engine import events, from_schema

    from tests.torture.meanings import register

    register()
    headers = {"Authorization": f"Bearer {address.secret}"}
    config = SchemathesisConfig(seed=seed)
    project = config.projects.default
    project.update(headers=headers, workers=1, continue_on_failure=True, request_timeout=PATIENCE)
    project.generation.update(max_examples=examples, database="none", no_shrink=True)
    project.checks.update(included_check_names=["all"])
    # What 400 means of all that the document allows is judged by `meanings`.
    project.checks.positive_data_acceptance.expected_statuses = [
        *("2xx", "3xx", "400", "401", "403", "404", "409", "429")
    ]
    schema = schemathesis.openapi.from_url(
        f"{address.url}/openapi.json", headers=headers, config=config
    )
    if paths:
        schema = schema.include(path_regex=paths)
    found = Findings()
    for event in from_schema(schema).execute():
        if isinstance(event, events.PhaseFinished):
            found.phases[event.phase.name.value] = event.status.value
        elif isinstance(event, events.NonFatalError):
            found.errors.append(f"{event.label}: {event.info.title}: {event.info.message}")
        elif isinstance(event, events.ScenarioFinished):
            _note(found, event.recorder)
    return found


def _note(found: Findings, recorder: Any) -> None:
    for key, exchange in recorder.interactions.items():
        found.requests += 1
        if exchange.response is not None:
            found.statuses[exchange.response.status_code] += 1
        if key in recorder.cases:
            found.operations.add(recorder.cases[key].value.operation.label)
    for key, checks in recorder.checks.items():
        for check in checks:
            found.checks[check.name] += 1
            if check.failure_info is None:
                continue
            failure = check.failure_info.failure
            place = recorder.cases[key].value.operation.label if key in recorder.cases else "?"
            found.failures[check.name, place, failure.title] = (
                f"{failure.message}\n{_shown(recorder.interactions.get(key))}"
            )


def _shown(exchange: Any) -> str:
    if exchange is None or exchange.response is None:
        return "no answer"
    asked, answer = exchange.request, exchange.response
    return (
        f"{asked.method} {asked.uri[:300]} {(asked.body or b'')[:500]!r} → "
        f"{answer.status_code} {(answer.content or b'')[:500]!r}"
    )
