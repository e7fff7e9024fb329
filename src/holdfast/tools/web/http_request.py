"""`http_request`: one request to a host that every grant names.

The body size is limited, also during decompression (zip bombs).
"""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from holdfast.domain.text import quote, visible
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure, UnansweredRequest
from holdfast.tools.web.connection import (
    HEADER_NAME,
    HEADER_VALUE,
    RESERVED_HEADERS,
    WebSettings,
)
from holdfast.tools.web.ssrf import URL_LONGEST, Url, allowed_domains, read_url, require_domain

BODY_LARGEST: Final = 4 << 20
_SWELLS_AT_MOST: Final = 100
_PIECES_AT_MOST: Final = 64
# Makes zlib detect gzip or deflate.
_EITHER: Final = 32 + zlib.MAX_WBITS


async def read_body(
    chunks: AsyncIterator[bytes], *, encoding: str = "", largest: int = BODY_LARGEST
) -> bytes:
    """Return the decompressed body; stops reading as soon as a limit is exceeded."""
    match encoding.strip().lower():
        case "" | "identity":
            return await _read_plain(chunks, largest)
        case "gzip" | "x-gzip" | "deflate":
            return await _read_compressed(chunks, largest)
        case _:
            raise UnansweredRequest(
                ResultCode.FAILED, "The response has an encoding that was not requested."
            )


async def _read_plain(chunks: AsyncIterator[bytes], largest: int) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > largest:
            raise _too_large(f"The response is larger than {largest} bytes.")
    return bytes(body)


async def _read_compressed(chunks: AsyncIterator[bytes], largest: int) -> bytes:
    body, taken, pieces, inflating = bytearray(), 0, 1, zlib.decompressobj(_EITHER)
    async for chunk in chunks:
        taken += len(chunk)
        # Compressed data may decompress to almost nothing, so its own size is limited too.
        if taken > largest:
            raise _too_large(f"The response is larger than {largest} bytes.")
        rest = chunk
        while rest:
            if inflating.eof:
                # A body may have several gzip members; each one costs time, even an empty one.
                pieces, inflating = pieces + 1, zlib.decompressobj(_EITHER)
            body += _inflate_some(inflating, rest, largest + 1 - len(body))
            if len(body) > largest:
                raise _too_large(f"The response decompresses to more than {largest} bytes.")
            if pieces > _PIECES_AT_MOST:
                raise _too_large("The response has too many compressed members.")
            if len(body) > taken * _SWELLS_AT_MOST:
                raise _too_large("The response decompresses to more than a hundred times its size.")
            rest = inflating.unconsumed_tail or inflating.unused_data
    if taken and not inflating.eof:
        raise _unreadable()
    return bytes(body)


def _inflate_some(inflating: "zlib._Decompress", chunk: bytes, most: int) -> bytes:
    try:
        return inflating.decompress(chunk, most)
    except zlib.error:
        raise _unreadable() from None


def _too_large(why: str) -> ToolFailure:
    return ToolFailure(ResultCode.TOO_LARGE, why)


def _unreadable() -> ToolFailure:
    return UnansweredRequest(ResultCode.FAILED, "The response cannot be decompressed.")


Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Headers = tuple[tuple[str, str], ...]
_BODY_LARGEST: Final = 1 << 20
_HEADERS_LARGEST: Final = 32 << 10
_CREDENTIALS: Final = frozenset({"authorization", "cookie"})
_KEY: Final = "idempotency-key"
# The longest key that common APIs accept.
_KEY_LONGEST: Final = 255


class RequestArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `http_request` takes."""

    url: Annotated[str, Meta(min_length=1, max_length=URL_LONGEST)]
    method: Method = "GET"
    headers: Annotated[dict[str, str], Meta(max_length=64)] = {}
    body: Annotated[str, Meta(max_length=_BODY_LARGEST)] = ""


def web_tools(settings: WebSettings) -> tuple[LocalTool[Any], ...]:
    """Return the tools that send web requests."""
    requests = _HttpRequestTool(settings)
    return (
        LocalTool(
            name="http_request",
            description=(
                "Send one HTTPS request to an allowed domain and return status, headers and text."
                " Redirects are not followed: the answer names the location."
            ),
            arguments=RequestArguments,
            effect=_effect,
            plan=requests.plan,
            act=requests.act,
            is_available=lambda workspace: bool(allowed_domains(workspace.grants)),
        ),
    )


class _HttpRequestTool:
    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings

    async def plan(self, workspace: ToolWorkspace, arguments: RequestArguments) -> CallPlan:
        url, headers = self._check(workspace, arguments)
        has_credential = url.host in self._settings.credentials
        lines = [f"{arguments.method} {url.text}"]
        lines += [f"{name}: {visible(value)}" for name, value in headers]
        lines += ["with the credential for this host"] if has_credential else []
        lines += ["with the body", quote(arguments.body)] if arguments.body else []
        return CallPlan(
            tool_class=ToolClass.EGRESS,
            targets=(url.host, str(url.port), arguments.method, f"credential={has_credential}"),
            question="\n".join(lines),
            preview={"host": url.host},
            memory=f"egress:{url.host}:{url.port}:{arguments.method}",
        )

    async def act(
        self, workspace: ToolWorkspace, arguments: RequestArguments, call: RequestedCall
    ) -> dict[str, Any]:
        from holdfast.tools.web.exchange import WebRequest, open_exchange, remove_credential

        url, headers = self._check(workspace, arguments)
        request = WebRequest(
            url=url,
            method=arguments.method,
            headers=(*headers, *_key(arguments, headers, call)),
            body=arguments.body.encode(),
        )
        exchange = None
        try:
            async with asyncio.timeout(self._settings.time_limit):
                exchange = await open_exchange(request, self._settings)
                async with aclosing(exchange):
                    answer = await exchange.answer()
                    async with aclosing(answer.chunks()) as chunks:
                        encoding = answer.header("content-encoding")
                        body = await read_body(chunks, encoding=encoding)
        except TimeoutError:
            # Without a connection nothing was sent, so the request was not executed.
            kind = ToolFailure if exchange is None else UnansweredRequest
            raise kind(
                ResultCode.TIMEOUT,
                (
                    f"{url.host} did not send a complete response within "
                    f"{self._settings.time_limit:g} seconds."
                ),
            ) from None
        if b"\x00" in body:
            raise ToolFailure(
                ResultCode.BINARY, f"The response is not text: {len(body)} bytes of binary content."
            )
        return {
            "status": answer.status,
            "headers": {name: answer.header(name) for name, _ in answer.headers},
            "body": remove_credential(answer.credential, body.decode("utf-8", "replace")),
            "body_bytes": len(body),
        }

    def _check(self, workspace: ToolWorkspace, arguments: RequestArguments) -> tuple[Url, Headers]:
        url = read_url(arguments.url)
        require_domain(url, workspace.grants)
        if len(arguments.body.encode()) > _BODY_LARGEST:
            raise ToolFailure(ResultCode.TOO_LARGE, f"The body exceeds {_BODY_LARGEST} bytes.")
        headers = tuple(
            _outgoing_headers(arguments.headers, url.host in self._settings.credentials)
        )
        if sum(len(name) + len(value) for name, value in headers) > _HEADERS_LARGEST:
            raise ToolFailure(ResultCode.TOO_LARGE, f"Headers exceed {_HEADERS_LARGEST} bytes.")
        return url, headers


def _effect(arguments: RequestArguments) -> Effect:
    return Effect.UNSAFE if arguments.method in {"POST", "PATCH"} else Effect.IDEMPOTENT


def _key(
    arguments: RequestArguments, headers: Headers, request: RequestedCall
) -> Iterator[tuple[str, str]]:
    """Yield an idempotency key header, unless the method only reads or the caller set one."""
    has_own = any(name == _KEY for name, _ in headers)
    if arguments.method not in {"GET", "HEAD"} and not has_own:
        key = request.idempotency_key
        is_usual = len(key) <= _KEY_LONGEST and HEADER_VALUE.fullmatch(key)
        yield _KEY, key if is_usual else hashlib.sha256(key.encode()).hexdigest()


def _outgoing_headers(headers: dict[str, str], has_credential: bool) -> Iterator[tuple[str, str]]:
    """Yield the outgoing headers without reserved ones; refuse credentials in arguments."""
    for name, value in headers.items():
        low = name.lower()
        if low in _CREDENTIALS and not has_credential:
            raise ToolFailure(
                ResultCode.INVALID_ARGUMENTS,
                f"The header {low} cannot be set by a call; configure it for the host.",
            )
        legal = HEADER_NAME.fullmatch(name) and HEADER_VALUE.fullmatch(value)
        if legal and low not in _CREDENTIALS and not RESERVED_HEADERS.fullmatch(low):
            yield low, value
