"""The language models of all providers as one `Llm`, implemented with pydantic-ai.

All share one HTTP connection pool. Requests run on a second event loop in a worker thread, because
building and parsing them is CPU-intensive. Vendor packages are imported there when the first model
is built.
"""

import asyncio
import logging
import re
import threading
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.secrets import Secret
from holdfast.domain.tools import ALWAYS
from holdfast.llm.providers import COMPATIBLE, PROVIDERS, Provider
from holdfast.llm.translation import (
    CALLS_MOST,
    IncompleteResponseError,
    ResponseStream,
    TooManyCallsError,
    build_messages,
    build_parameters,
    build_settings,
)
from holdfast.ports.llm import Failed, FailureKind, LlmDelta, LlmRequest

if TYPE_CHECKING:
    from pydantic_ai.models import Model as VendorModel
    from pydantic_ai.models import StreamedResponse


T = TypeVar("T")
_WAITING_MOST: Final = 256


class WorkerLoop:
    """A second event loop in a thread that runs from the first use until `aclose`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def stream(self, make: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """Run a generator on the worker loop and yield its items; closing this closes it.

        One task creates, runs and closes the generator. Back-pressure: the generator waits while
        too many items are not consumed.
        """
        pipe = _Pipe[T](here=asyncio.get_running_loop(), there=self._ensure_loop())
        pumping = asyncio.run_coroutine_threadsafe(pipe.fill(make), pipe.there)
        try:
            while items := await pipe.take():
                for item in items:
                    yield item
            if pipe.error is not None:
                raise pipe.error
        finally:
            pumping.cancel()
            await pipe.over.wait()

    async def aclose(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a last coroutine on the worker loop, then end the thread; a later use restarts it."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(last(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon thread, so that a program that does not call `aclose` can still exit.
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name="holdfast-llm", daemon=True
            )
            self._thread.start()
        return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


class _Pipe(Generic[T]):
    """Thread-safe buffer of items from the worker loop to the caller's loop."""

    def __init__(
        self, *, here: asyncio.AbstractEventLoop, there: asyncio.AbstractEventLoop
    ) -> None:
        self.there = there
        self.over = asyncio.Event()
        self.error: Exception | None = None
        self._here = here
        self._due = asyncio.Event()
        self._room = asyncio.Event()
        self._lock = threading.Lock()
        self._items: list[T] = []

    async def fill(self, make: Callable[[], AsyncGenerator[T, None]]) -> None:
        """Run the generator to its end; called on the worker loop."""
        try:
            async with aclosing(make()) as generator:
                async for item in generator:
                    with self._lock:
                        self._items.append(item)
                        is_full = len(self._items) >= _WAITING_MOST
                    self._call_soon(self._due.set)
                    if is_full:
                        # No lost wake-up: `set` runs on this loop, so not before this waits.
                        self._room.clear()
                        await self._room.wait()
        # Stored and raised in the consumer, because an exception in this task would be lost.
        except Exception as error:  # noqa: BLE001
            self.error = error
        finally:
            self._call_soon(self._end)

    async def take(self) -> list[T]:
        """Return the new items, or an empty list at the end; called on the caller's loop."""
        while True:
            self._due.clear()
            is_over = self.over.is_set()
            with self._lock:
                items, self._items = self._items, []
            if items:
                self.there.call_soon_threadsafe(self._room.set)
            if items or is_over:
                return items
            await self._due.wait()

    def _end(self) -> None:
        self.over.set()
        self._due.set()

    def _call_soon(self, what: Callable[[], None]) -> None:
        # The caller's loop may be closed already, if the program exits without `aclose`.
        with suppress(RuntimeError):
            self._here.call_soon_threadsafe(what)


_open_responses: ContextVar[list[Any] | None] = ContextVar("begun", default=None)


@asynccontextmanager
async def hold_response(
    asked: AbstractAsyncContextManager["StreamedResponse"],
) -> AsyncGenerator["StreamedResponse", None]:
    """Enter a streamed response and close its HTTP request on exit, even if it is incomplete.

    Needed because some vendor packages leave that to the garbage collector.
    """
    exchanges: list[Any] = []
    try:
        with _collect_responses(exchanges):
            response = await asked.__aenter__()
        try:
            yield response
        finally:
            await asked.__aexit__(None, None, None)
    finally:
        for exchange in exchanges:
            await exchange.aclose()


@contextmanager
def _collect_responses(exchanges: list[Any]) -> Iterator[None]:
    token = _open_responses.set(exchanges)
    try:
        yield
    finally:
        _open_responses.reset(token)


async def record_response(exchange: Any) -> None:
    """HTTP event hook: register a response, so that `hold_response` can close it."""
    if (exchanges := _open_responses.get()) is not None:
        exchanges.append(exchange)


# Placeholder for providers without keys, because their packages require one.
_NO_KEY: Final = "none"
# Matches module names, and file names for warnings raised at compile time.
_VENDORS: Final = r"(.*[/\\])?(pydantic_ai|openai|anthropic|google|httpx2)([./\\]|$)"
# At lower levels these loggers would write prompts and answers to the log.
_NOISY_LOGGERS: Final = (
    "openai",
    "anthropic",
    "google_genai",
    "httpx2",
    "httpcore2",
    "pydantic_ai",
)


class LlmTimeouts(Struct, frozen=True, kw_only=True):
    """Timeouts in seconds: to connect, and until the next byte of a response."""

    connect: float = 10.0
    silence: float = 120.0


class ModelTarget(Struct, frozen=True, kw_only=True):
    """Provider, model, address and key of a request."""

    provider: Provider
    name: str
    base_url: str
    key: Secret | None


class ProviderClients:
    """HTTP clients of all providers, created at first use."""

    def __init__(self, llm_timeouts: LlmTimeouts) -> None:
        self._llm_timeouts = llm_timeouts
        self._http: Any = None
        self._lock = threading.Lock()

    def build(self, target: ModelTarget) -> "VendorModel":
        """Return the vendor's model; raises `ImportError` when its package is not installed.

        The first call imports large packages and takes seconds, so call it in a thread.
        """
        if self._http is None:
            _silence_vendors()
        from pydantic_ai.models import infer_model

        kind = "openai-chat" if target.provider.kind == COMPATIBLE else target.provider.kind
        return infer_model(f"{kind}:{target.name}", lambda _: self._provider(target))

    async def aclose(self) -> None:
        """Close every connection; no requests may follow."""
        with self._lock:
            http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def _provider(self, target: ModelTarget) -> Any:
        from pydantic_ai.providers import infer_provider_class

        kind = target.provider.kind
        reach = {
            "base_url": target.base_url,
            "api_key": target.key.reveal() if target.key else _NO_KEY,
            "http_client": self._http_client(),
        }
        if target.provider.extra != "openai":
            return infer_provider_class(kind)(**reach)
        openai: Any = infer_provider_class("openai")(**reach)
        if kind == COMPATIBLE:
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            return OpenAICompatibleProvider(target.provider.name, openai_client=openai.client)
        owner: Any = infer_provider_class(kind)
        return openai if owner is type(openai) else owner(openai_client=openai.client)

    def _http_client(self) -> Any:
        from genai_prices.data_snapshot import get_snapshot
        from pydantic_ai.models import create_async_httpx2_client

        # Loaded here in a thread, because the first response would load them on the event loop.
        get_snapshot()
        with self._lock:
            if self._http is None:
                wait = self._llm_timeouts
                timeouts = (wait.connect, wait.silence, wait.silence, wait.connect)
                # A tuple instead of their timeout class, which would need one more import.
                self._http = create_async_httpx2_client(timeout=timeouts)  # type: ignore[arg-type]
                self._http.event_hooks = {**self._http.event_hooks, "response": [record_response]}
            return self._http


def _silence_vendors() -> None:
    """Set vendor loggers to WARNING and suppress vendor warnings."""
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    # They warn about ignored settings and deprecated models, which is harmless here.
    warnings.filterwarnings("ignore", module=_VENDORS)


KeyOf = Callable[[str], Awaitable[Secret | None]]
# Printable ASCII without spaces, the safe characters of a header or request line.
_VISIBLE: Final = re.compile(r"[!-~]+")


class ProviderModels:
    """All models of all providers; each request is sent once and never retried."""

    def __init__(
        self,
        key_of: KeyOf,
        base_urls: Mapping[str, str] | None = None,
        *,
        llm_timeouts: LlmTimeouts | None = None,
    ) -> None:
        """`key_of` looks up the provider's key for every request; the key is not stored."""
        self._key_of = key_of
        self._base_urls = dict(base_urls or {})
        self._clients = ProviderClients(llm_timeouts or LlmTimeouts())
        self._worker_loop = WorkerLoop()

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the response; closing the generator cancels the request."""
        provider = PROVIDERS[request.model.provider]
        target = await self._target(request, provider)
        if isinstance(target, Failed):
            yield target
            return
        async with aclosing(
            self._worker_loop.stream(lambda: self._stream(request, target))
        ) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Close the connections to all providers."""
        await self._worker_loop.aclose(self._clients.aclose)

    async def _target(self, request: LlmRequest, provider: Provider) -> ModelTarget | Failed:
        base_url = self._base_urls.get(provider.name, provider.base_url)
        if base_url is None:
            return _not_sent(_MISSING_BASE_URL, provider)
        if not _is_address(base_url):
            return _not_sent(_INVALID_BASE_URL, provider)
        try:
            key = await self._key_of(provider.key)
        # Neither chained nor logged, because a keychain's exception may contain the secret.
        except Exception:  # noqa: BLE001
            return _not_sent(_UNREADABLE_KEY, provider)
        if key is None and provider.needs_key:
            return _not_sent(_MISSING_KEY, provider)
        # Checked here, because the HTTP library's error for an invalid header would quote the key.
        if key is not None and not _VISIBLE.fullmatch(key.reveal()):
            return _not_sent(_INVALID_KEY, provider)
        return ModelTarget(provider=provider, name=request.model.name, base_url=base_url, key=key)

    async def _stream(
        self, request: LlmRequest, target: ModelTarget
    ) -> AsyncGenerator[LlmDelta, None]:
        is_closing = False
        try:
            # In a thread, because the first import takes seconds.
            model = await asyncio.to_thread(self._clients.build, target)
            async with aclosing(_stream_response(request, target.provider, model)) as deltas:
                async for delta in deltas:
                    is_closing = True
                    yield delta
                    is_closing = False
        # Caught here, because vendor exceptions quote the request and the response.
        except Exception as error:  # noqa: BLE001
            # No yield while the generator is being closed, not even for an error during the close.
            if not is_closing:
                yield provider_failure(error, target.provider)


def _is_address(base_url: str) -> bool:
    try:
        parts = urlsplit(base_url)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_whole and _VISIBLE.fullmatch(base_url) is not None


async def _stream_response(
    request: LlmRequest, provider: Provider, model: "VendorModel"
) -> AsyncGenerator[LlmDelta, None]:
    if request.tools and not model.profile.get("supports_tools", True):
        if any(tool.name not in ALWAYS for tool in request.tools):
            yield _not_sent(_NO_TOOLS, provider)
            return
        # Nothing else is lost: these tools are offered although the agent does not name any.
        request = replace(request, tools=())
    hearing = ResponseStream(request)
    asked = model.request_stream(
        build_messages(request, provider, model),
        build_settings(request, provider, model),
        build_parameters(request),
    )
    async with hold_response(asked) as response:
        # A generator despite its annotation; closed here instead of by the garbage collector.
        events = cast("AsyncGenerator[Any, None]", aiter(response))
        async with aclosing(events):
            async for event in events:
                for delta in hearing.deltas_of(event):
                    yield delta
    for delta in hearing.end(response.get()):
        yield delta


def provider_failure(error: Exception, provider: Provider) -> Failed:
    """Return the failure for an exception of the provider's package."""
    if isinstance(error, ImportError):
        return _not_sent(_MISSING_PACKAGE, provider)
    from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior, UserError

    match error:
        case IncompleteResponseError() | UnexpectedModelBehavior():
            return _incomplete_response(provider)
        case TooManyCallsError():
            return Failed(
                kind=FailureKind.UNAVAILABLE,
                message=f"{provider.name} sent more than {CALLS_MOST} tool calls at once.",
            )
        case ModelAPIError():
            return _api_failure(error, provider)
        # Raised while building the request, so nothing was sent.
        case UserError():
            return _not_sent(_INEXPRESSIBLE, provider)
        case _:
            return Failed(
                kind=FailureKind.UNKNOWN,
                message=f"The request to {provider.name} failed with an unknown error "
                f"({type(error).__name__}).",
            )


def _not_sent(problem: tuple[FailureKind, str], provider: Provider) -> Failed:
    """Return the failure for a request that was not sent."""
    kind, sentence = problem
    return Failed(
        kind=kind,
        message=sentence.format(
            name=provider.name,
            key=provider.key,
            key_remedy=_key_remedy(provider),
            extra=provider.extra,
            variable=provider.base_url_variable or "the configuration",
        ),
        sent=False,
    )


def _key_remedy(provider: Provider) -> str:
    return f"run holdfast key set {provider.key}, or set {provider.key_variable}."


def _incomplete_response(provider: Provider) -> Failed:
    return Failed(
        kind=FailureKind.UNAVAILABLE,
        message=f"The answer of {provider.name} ended before it was complete.",
    )


def _api_failure(error: Exception, provider: Provider) -> Failed:
    status_code: int | None = getattr(error, "status_code", None)
    kind = _kind(error, status_code)
    sentence = _SPECIAL_MESSAGES.get((kind, _category(error)), _MESSAGES[kind])
    if status_code == _NOT_FOUND:
        sentence = _MODEL_NOT_FOUND
    status = f" (status {status_code})" if status_code else ""
    return Failed(
        kind=kind,
        message=sentence.format(
            name=provider.name, status=status, key_remedy=_key_remedy(provider)
        ),
        status=status_code,
        retry_after=getattr(error, "retry_after", None),
        billed=_is_billed(error, status_code),
    )


def _is_billed(error: Exception, status: int | None) -> bool:
    """Return whether the provider may charge for the request although it failed."""
    # An error inside the stream carries a status too, but the model may have written by then.
    if status is not None and not getattr(error, "in_stream", False):
        return not (300 <= status < 500 or status in _REFUSALS)
    return getattr(error, "phase", None) not in _UNCONNECTED


def _kind(error: Exception, status: int | None) -> FailureKind:
    """Return the failure kind, by status or else by pydantic-ai's error class."""
    category = _category(error)
    if category == "ModelContextWindowExceededError":
        return FailureKind.TOO_LONG
    if status in _STATUSES:
        return _STATUSES[status]
    if category in _CATEGORIES:
        return _CATEGORIES[category]
    if status is not None and 400 <= status < 500:
        return FailureKind.BAD_REQUEST
    return FailureKind.UNAVAILABLE


def _category(error: Exception) -> str:
    """Return the exception's class name, which is pydantic-ai's category of the error."""
    return type(error).__name__


_MISSING_KEY: Final = (FailureKind.AUTH, "There is no key for {key}; {key_remedy}")
_UNREADABLE_KEY: Final = (
    FailureKind.AUTH,
    "The key for {key} could not be read; {key_remedy}",
)
_INVALID_KEY: Final = (
    FailureKind.AUTH,
    "The key for {key} contains invalid characters; {key_remedy}",
)
_MISSING_PACKAGE: Final = (
    FailureKind.BAD_REQUEST,
    "The package for {name} is not installed; install holdfast[{extra}].",
)
_MISSING_BASE_URL: Final = (
    FailureKind.BAD_REQUEST,
    "There is no base URL for {name}; set {variable}.",
)
# The URL is not shown, because it may contain a key.
_INVALID_BASE_URL: Final = (
    FailureKind.BAD_REQUEST,
    "The base URL for {name} is not valid; check {variable}.",
)
_NO_TOOLS: Final = (
    FailureKind.BAD_REQUEST,
    "This model of {name} does not support tools, and the agent needs them; choose another model.",
)
_INEXPRESSIBLE: Final = (
    FailureKind.BAD_REQUEST,
    "{name} cannot process this request; check the name of the model, "
    "and the tools and settings of the agent.",
)
_NOT_FOUND: Final = 404
# Server errors of the provider itself. Those of gateways (502, 504, 520 and above) are not among
# them, because a gateway may lose the answer of a request that was processed and is charged.
_REFUSALS: Final = frozenset({500, 501, 503, 529})
# Phases of pydantic-ai's connection errors in which no request could be sent yet.
_UNCONNECTED: Final = frozenset({"pool", "connect"})
_STATUSES: Final[Mapping[int | None, FailureKind]] = {
    401: FailureKind.AUTH,
    402: FailureKind.AUTH,
    403: FailureKind.AUTH,
    408: FailureKind.UNAVAILABLE,
    413: FailureKind.TOO_LONG,
    429: FailureKind.RATE_LIMIT,
}
_CATEGORIES: Final[Mapping[str, FailureKind]] = {
    # Some providers report a wrong key or an empty account with status 400.
    "ModelAuthenticationError": FailureKind.AUTH,
    "ModelQuotaExceededError": FailureKind.AUTH,
    "ModelRateLimitError": FailureKind.RATE_LIMIT,
}
_MESSAGES: Final[Mapping[FailureKind, str]] = {
    FailureKind.RATE_LIMIT: "{name} accepts no more requests for now{status}.",
    FailureKind.UNAVAILABLE: "{name} cannot answer now{status}.",
    FailureKind.AUTH: "{name} does not accept the key{status}; {key_remedy}",
    FailureKind.TOO_LONG: "The conversation is too long for this model of {name}{status}.",
    FailureKind.BAD_REQUEST: "{name} rejected the request{status}; check the model and "
    "the settings of the agent.",
}
_SPECIAL_MESSAGES: Final[Mapping[tuple[FailureKind, str], str]] = {
    (FailureKind.AUTH, "ModelQuotaExceededError"): (
        "{name} requires payment{status}; check the credit of the account."
    ),
    (FailureKind.UNAVAILABLE, "ModelTimeoutError"): "{name} did not answer in time.",
    (FailureKind.UNAVAILABLE, "ModelConnectionError"): "The connection to {name} failed.",
}
_MODEL_NOT_FOUND: Final = (
    "{name} does not know this model{status}; check its name, and the base URL if you have set one."
)
