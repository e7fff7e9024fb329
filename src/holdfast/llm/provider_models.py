"""The language models of all providers as one `Llm`; pydantic-ai stays behind it.

One HTTP connection pool for all. Requests run on a second event loop in a worker thread, because
building and parsing them takes the processor long; the vendors' packages are imported there when
the first model is built.

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

from holdfast.domain.secrets import Secret
from holdfast.llm import errors as llm_errors
from holdfast.llm.providers import COMPATIBLE, PROVIDERS, Provider
from holdfast.llm.requests import build_messages, build_parameters, build_settings
from holdfast.llm.responses import ResponseStream
from holdfast.ports import Failed, LlmDelta, LlmRequest

if TYPE_CHECKING:
    from pydantic_ai.models import Model as VendorModel
    from pydantic_ai.models import StreamedResponse


T = TypeVar("T")
_WAITING_MOST: Final = 256


class WorkerLoop:
    """The second loop; its thread runs from the first use until it is closed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def stream(self, make: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """Yield what the generator yields there; when this is closed, that has been closed.

        It is made, run and closed by one task, and waits while nobody takes what it has yielded.
        """
        pipe = _Pipe[T](here=asyncio.get_running_loop(), there=self._running())
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
        """Do one last thing there, then end the thread; a later use begins a new one."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(last(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon, because a program that forgets to close us must be able to end.
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name="holdfast-llm", daemon=True
            )
            self._thread.start()
        return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


class _Pipe(Generic[T]):
    """What was yielded there and not taken here yet."""

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
        """Run the generator to its end; on the loop there."""
        try:
            async with aclosing(make()) as generator:
                async for item in generator:
                    with self._lock:
                        self._items.append(item)
                        is_full = len(self._items) >= _WAITING_MOST
                    self._tell(self._due.set)
                    if is_full:
                        # Whoever takes sets it on this loop, so not before we wait.
                        self._room.clear()
                        await self._room.wait()
        # Raised here and not there, where nobody listens.
        except Exception as error:  # noqa: BLE001
            self.error = error
        finally:
            self._tell(self._end)

    async def take(self) -> list[T]:
        """Return what has come since the last time; nothing when nothing more will; here."""
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

    def _tell(self, what: Callable[[], None]) -> None:
        # The loop here may be gone, when a program ends without closing anything.
        with suppress(RuntimeError):
            self._here.call_soon_threadsafe(what)


_open_responses: ContextVar[list[Any] | None] = ContextVar("begun", default=None)


@asynccontextmanager
async def hold_response(
    asked: AbstractAsyncContextManager["StreamedResponse"],
) -> AsyncGenerator["StreamedResponse", None]:
    """Hold an answer, and end its request when the block is left, however much is still to come.

    Not every vendor's package does that by itself: some leave it to the garbage collector.
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
    """Remember a response whose head has come, for whoever holds the answer."""
    if (exchanges := _open_responses.get()) is not None:
        exchanges.append(exchange)


# For providers that ask for no key: their packages insist on one.
_NO_KEY: Final = "none"
# As modules, and as the files that Python names while it compiles them.
_VENDORS: Final = r"(.*[/\\])?(pydantic_ai|openai|anthropic|google|httpx2)([./\\]|$)"
# At a finer level these write down what was said and asked, which is nobody's business.
_NOISY_LOGGERS: Final = (
    "openai",
    "anthropic",
    "google_genai",
    "httpx2",
    "httpcore2",
    "pydantic_ai",
)


class LlmTimeouts(Struct, frozen=True, kw_only=True):
    """How many seconds to wait: for a connection, and for the next byte of an answer."""

    connect: float = 10.0
    silence: float = 120.0


class ModelTarget(Struct, frozen=True, kw_only=True):
    """Whom a request goes to."""

    provider: Provider
    name: str
    base_url: str
    key: Secret | None


class ProviderClients:
    """The connections to all providers; opened when the first is needed."""

    def __init__(self, llm_timeouts: LlmTimeouts) -> None:
        self._llm_timeouts = llm_timeouts
        self._http: Any = None
        self._lock = threading.Lock()

    def build(self, target: ModelTarget) -> "VendorModel":
        """Return the model to ask; raises `ImportError` when its package is not installed.

        The first time this takes seconds, because the packages are large: call it in a thread.
        """
        if self._http is None:
            _silence_vendors()
        from pydantic_ai.models import infer_model

        kind = "openai-chat" if target.provider.kind == COMPATIBLE else target.provider.kind
        return infer_model(f"{kind}:{target.name}", lambda _: self._provider(target))

    async def aclose(self) -> None:
        """Close every connection; nothing is asked any more."""
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
            "http_client": self._shared(),
        }
        if target.provider.extra != "openai":
            return infer_provider_class(kind)(**reach)
        openai: Any = infer_provider_class("openai")(**reach)
        if kind == COMPATIBLE:
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            return OpenAICompatibleProvider(target.provider.name, openai_client=openai.client)
        owner: Any = infer_provider_class(kind)
        return openai if owner is type(openai) else owner(openai_client=openai.client)

    def _shared(self) -> Any:
        from genai_prices.data_snapshot import get_snapshot
        from pydantic_ai.models import create_async_httpx2_client

        # The first answer would load these tables where everybody has to wait for it.
        get_snapshot()
        with self._lock:
            if self._http is None:
                wait = self._llm_timeouts
                timeouts = (wait.connect, wait.silence, wait.silence, wait.connect)
                # A tuple is as good as their own class, which would be one more package to name.
                self._http = create_async_httpx2_client(timeout=timeouts)  # type: ignore[arg-type]
                self._http.event_hooks = {**self._http.event_hooks, "response": [record_response]}
            return self._http


def _silence_vendors() -> None:
    """Keep what vendors have to say to programmers out of the logs and off the terminal."""
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    # They warn of settings that a model ignores and of old models: nothing goes wrong by it.
    warnings.filterwarnings("ignore", module=_VENDORS)


KeyOf = Callable[[str], Awaitable[Secret | None]]
# What keys and addresses are made of: nothing that a header or a line of a request cannot hold.
_VISIBLE: Final = re.compile(r"[!-~]+")


class ProviderModels:
    """Every model of every provider; a request is sent once and never again."""

    def __init__(
        self,
        key_of: KeyOf,
        base_urls: Mapping[str, str] | None = None,
        *,
        llm_timeouts: LlmTimeouts | None = None,
    ) -> None:
        """`key_of` looks up the key of a provider for each request; it is not kept."""
        self._key_of = key_of
        self._base_urls = dict(base_urls or {})
        self._clients = ProviderClients(llm_timeouts or LlmTimeouts())
        self._worker_loop = WorkerLoop()

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the answer; closing the generator ends the request at once."""
        provider = PROVIDERS[request.model.provider]
        target = await self._target(request, provider)
        if isinstance(target, Failed):
            yield target
            return
        async with aclosing(
            self._worker_loop.stream(lambda: self._asked(request, target))
        ) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Close the connections to all providers."""
        await self._worker_loop.aclose(self._clients.aclose)

    async def _target(self, request: LlmRequest, provider: Provider) -> ModelTarget | Failed:
        base_url = self._base_urls.get(provider.name, provider.base_url)
        if base_url is None:
            return llm_errors.missing_base_url(provider)
        if not _is_address(base_url):
            return llm_errors.invalid_base_url(provider)
        try:
            key = await self._key_of(provider.key)
        # Not chained and not logged: what a keychain raises may hold what it keeps.
        except Exception:  # noqa: BLE001
            return llm_errors.key_lookup_failed(provider)
        if key is None and provider.needs_key:
            return llm_errors.missing_key(provider)
        # A header takes nothing else, and the error of one that is no key would quote it.
        if key is not None and not _VISIBLE.fullmatch(key.reveal()):
            return llm_errors.invalid_key(provider)
        return ModelTarget(provider=provider, name=request.model.name, base_url=base_url, key=key)

    async def _asked(
        self, request: LlmRequest, target: ModelTarget
    ) -> AsyncGenerator[LlmDelta, None]:
        is_closing = False
        try:
            # In a thread, because what it imports the first time takes seconds.
            model = await asyncio.to_thread(self._clients.build, target)
            async with aclosing(_stream_response(request, target.provider, model)) as deltas:
                async for delta in deltas:
                    is_closing = True
                    yield delta
                    is_closing = False
        # An exception of a vendor quotes what it was sent and told, so none gets out.
        except Exception as error:  # noqa: BLE001
            # Who closes us hears nothing more, not even that closing went wrong.
            if not is_closing:
                yield llm_errors.provider_failure(error, target.provider)


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
        yield llm_errors.tools_unsupported(provider)
        return
    hearing = ResponseStream(request)
    asked = model.request_stream(
        build_messages(request, provider, model),
        build_settings(request, provider, model),
        build_parameters(request),
    )
    async with hold_response(asked) as response:
        # A generator, whatever its annotation says; closed by us and not when somebody finds it.
        events = cast("AsyncGenerator[Any, None]", aiter(response))
        async with aclosing(events):
            async for event in events:
                for delta in hearing.hear(event):
                    yield delta
    for delta in hearing.end(response.get()):
        yield delta
