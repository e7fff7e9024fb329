"""How errors look over HTTP."""

from msgspec import to_builtins

from holdfast.domain.errors import Code, HoldfastError, StorageFull
from holdfast.http.errors import error_response
from holdfast.wire.errors import STATUSES


def test_every_class_of_errors_has_a_status() -> None:
    assert {kind.__name__: status for kind, status in STATUSES.items()} == {
        "Invalid": 400,
        "Denied": 403,
        "NotFound": 404,
        "Conflict": 409,
        "LimitReached": 429,
        "Unavailable": 503,
        "StorageFull": 507,
        "Internal": 500,
    }
    assert set(STATUSES) == set(HoldfastError.__subclasses__())


def test_an_error_has_the_status_of_its_class_and_the_spelling_of_its_surface() -> None:
    error = StorageFull(Code.STORAGE_FULL, "The disk is full.", {"retry_after": 1.5, "a_b": {1}})

    answer = error_response(error, path="/api/repos")

    assert (answer.status, dict(answer.headers)) == (507, {"retry-after": "2"})
    assert to_builtins(answer.content) == {
        "error": "storage_full",
        "message": "The disk is full.",
        "details": {"retryAfter": 1.5, "aB": [1]},
    }
