"""Maps provider exceptions to failures: a kind, and a message that names the remedy."""

from collections.abc import Mapping
from typing import Final

from holdfast.llm.providers import Provider
from holdfast.llm.responses import CALLS_MOST, IncompleteResponseError, TooManyCallsError
from holdfast.ports import Failed, FailureKind


def provider_failure(error: Exception, provider: Provider) -> Failed:
    """Return the failure for an exception of the provider's package."""
    if isinstance(error, ImportError):
        return missing_package(provider)
    from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior, UserError

    match error:
        case IncompleteResponseError() | UnexpectedModelBehavior():
            return _incomplete_response(provider)
        case TooManyCallsError():
            return Failed(
                kind=FailureKind.UNAVAILABLE,
                message=f"{provider.name} asked for more than {CALLS_MOST} tool calls at once.",
            )
        case ModelAPIError():
            return _api_failure(error, provider)
        # Raised while building the request, so nothing was sent.
        case UserError():
            return unsupported_request(provider)
        case _:
            return Failed(
                kind=FailureKind.UNKNOWN,
                message=f"Asking {provider.name} failed in a way that Holdfast does not know "
                f"({type(error).__name__}).",
            )


def missing_key(provider: Provider) -> Failed:
    """Return the failure for a missing key."""
    return _not_sent(
        FailureKind.AUTH, f"There is no key for {provider.key}; {_key_remedy(provider)}"
    )


def key_lookup_failed(provider: Provider) -> Failed:
    """Return the failure for a failed key lookup."""
    return _not_sent(
        FailureKind.AUTH,
        f"The key for {provider.key} could not be looked up; {_key_remedy(provider)}",
    )


def invalid_key(provider: Provider) -> Failed:
    """Return the failure for a malformed key."""
    return _not_sent(
        FailureKind.AUTH,
        f"The key for {provider.key} holds characters that no key has; {_key_remedy(provider)}",
    )


def missing_package(provider: Provider) -> Failed:
    """Return the failure for a provider whose package is not installed."""
    return _not_sent(
        FailureKind.BAD_REQUEST,
        f"The package for {provider.name} is not installed; install holdfast[{provider.extra}].",
    )


def missing_base_url(provider: Provider) -> Failed:
    """Return the failure for a provider without a configured address."""
    return _not_sent(
        FailureKind.BAD_REQUEST,
        f"There is no address for {provider.name}; set {provider.base_url_variable}.",
    )


def invalid_base_url(provider: Provider) -> Failed:
    """Return the failure for a malformed base URL; not shown, because it may contain a key."""
    return _not_sent(
        FailureKind.BAD_REQUEST,
        f"The base URL for {provider.name} is not one; "
        f"check {provider.base_url_variable or 'the configuration'}.",
    )


def tools_unsupported(provider: Provider) -> Failed:
    """Return the failure for a model without tool support."""
    return _not_sent(
        FailureKind.BAD_REQUEST,
        f"This model of {provider.name} has no tools, and the agent needs them; "
        "choose another model.",
    )


def unsupported_request(provider: Provider) -> Failed:
    """Return the failure for a request that the provider's protocol cannot express."""
    return _not_sent(
        FailureKind.BAD_REQUEST,
        f"{provider.name} cannot be asked this; "
        "check the name of the model, and the tools and settings of the agent.",
    )


def _not_sent(kind: FailureKind, message: str) -> Failed:
    return Failed(kind=kind, message=message, sent=False)


def _key_remedy(provider: Provider) -> str:
    return f"run holdfast key set {provider.key}, or set {provider.key_variable}."


def _incomplete_response(provider: Provider) -> Failed:
    return Failed(
        kind=FailureKind.UNAVAILABLE,
        message=f"The answer of {provider.name} broke off before its end.",
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
    )


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


_NOT_FOUND: Final = 404
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
    FailureKind.RATE_LIMIT: "{name} takes no more requests for now{status}.",
    FailureKind.UNAVAILABLE: "{name} cannot answer now{status}.",
    FailureKind.AUTH: "{name} does not accept the key{status}; {key_remedy}",
    FailureKind.TOO_LONG: "The conversation is too long for this model of {name}{status}.",
    FailureKind.BAD_REQUEST: "{name} refused the request{status}; "
    "check the model and the settings of the agent.",
}
_SPECIAL_MESSAGES: Final[Mapping[tuple[FailureKind, str], str]] = {
    (FailureKind.AUTH, "ModelQuotaExceededError"): (
        "{name} wants to be paid first{status}; check the credit of the account."
    ),
    (FailureKind.UNAVAILABLE, "ModelTimeoutError"): "{name} did not answer in time.",
    (FailureKind.UNAVAILABLE, "ModelConnectionError"): "The connection to {name} failed.",
}
_MODEL_NOT_FOUND: Final = (
    "{name} does not know this model{status}; check its name, and the base URL if you have set one."
)
