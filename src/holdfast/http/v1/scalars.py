"""The small types of `/v1`: ids, instants, limits and what else many bodies and queries share."""

from typing import Annotated, Final

from msgspec import Meta, UnsetType

NUMBER_MOST: Final = (1 << 53) - 1

Uuid = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
        extra_json_schema={"format": "uuid"},
    ),
]
Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Cursor = Annotated[str, Meta(max_length=512)]
# As far as every reader of JSON counts exactly.
Number = Annotated[int, Meta(ge=0, le=NUMBER_MOST)]
ModelRef = Annotated[
    str,
    Meta(min_length=1, max_length=1024, description="A model's id, or its `provider:name`."),
]
Words = Annotated[str, Meta(max_length=1000)]


def is_given(value: object) -> bool:
    """Tell whether a key stood in the body; one that is null did."""
    return not isinstance(value, UnsetType)
