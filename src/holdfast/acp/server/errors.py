"""Maps Holdfast errors to JSON-RPC errors."""

from typing import Any, Final

from holdfast.acp.rpc.framing import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    NOT_FOUND,
    JsonRpcError,
    RequestRefused,
)
from holdfast.domain.errors import Code, Denied, HoldfastError, Invalid, NotFound

# Errors that the client can correct by changing its parameters.
_ABOUT_PARAMS: Final = (Invalid, Denied, NotFound)


def rpc_error(error: HoldfastError) -> JsonRpcError:
    """Return the JSON-RPC error; `data` holds our error code for programs."""
    code = INTERNAL_ERROR
    if error.code is Code.SESSION_NOT_FOUND:
        code = NOT_FOUND
    elif isinstance(error, _ABOUT_PARAMS):
        code = INVALID_PARAMS
    return JsonRpcError(code, error.message, error_data(error.code, error.message))


def error_data(code: str, message: str) -> dict[str, Any]:
    """Return the `data` object of an error."""
    return {"code": str(code), "message": message}


def invalid_params(message: str) -> RequestRefused:
    """Return the refusal of a request with invalid parameters."""
    return request_error(INVALID_PARAMS, message)


def request_error(code: int, message: str) -> RequestRefused:
    """Return the refusal of a request that is not valid."""
    return RequestRefused(JsonRpcError(code, message, error_data(Code.INVALID_INPUT, message)))
