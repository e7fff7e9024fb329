"""Our errors as JSON-RPC errors: one table from what happened to a number."""

from typing import Any, Final

from holdfast.acp.rpc.connection import Refused
from holdfast.acp.rpc.framing import INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, RpcError
from holdfast.domain.errors import Code, Denied, HoldfastError, Invalid, NotFound

# What the client can put right by asking for something else.
_ABOUT_PARAMS: Final = (Invalid, Denied, NotFound)


def rpc_error(error: HoldfastError) -> RpcError:
    """Return an error as a reply carries it; `data` has our own code for programs."""
    code = INTERNAL_ERROR
    if error.code is Code.SESSION_NOT_FOUND:
        code = NOT_FOUND
    elif isinstance(error, _ABOUT_PARAMS):
        code = INVALID_PARAMS
    return RpcError(code, error.message, data_of(error.code, error.message))


def data_of(code: str, message: str) -> dict[str, Any]:
    """Return what stands beside the number of an error."""
    return {"code": str(code), "message": message}


def bad_params(message: str) -> Refused:
    """Return the refusal of a request that cannot be meant so."""
    return Refused(RpcError(INVALID_PARAMS, message, data_of(Code.INVALID_INPUT, message)))
