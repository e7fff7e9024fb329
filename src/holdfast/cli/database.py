"""The store of `holdfast migrate|backup|restore` where it is a database and no file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.store.postgres.schema import DatabaseSchema


def schema_of(config: "Config") -> "DatabaseSchema | None":
    """Return the schema of the database that is configured; nothing where the store is a file."""
    if config.database_url is None:
        return None
    from holdfast.open_store import require_driver

    require_driver()
    from holdfast.store.postgres.schema import DatabaseSchema

    return DatabaseSchema(config.database_url)


def require_embedded(config: "Config", *, instead: str) -> None:
    """Refuse what is done with files where the store is a database."""
    from holdfast.domain.errors import Code, Invalid

    if config.database_url is not None:
        raise Invalid(
            Code.CONFIG_INVALID,
            f"The store is in Postgres (HOLDFAST_DATABASE_URL); use {instead}.",
            {"key": "store.database_url"},
        )


def require_empty(schema: "DatabaseSchema", *, force: bool) -> None:
    """Refuse to lose rows of a database without being told to."""
    from holdfast.domain.errors import Code, Conflict

    if not force and schema.is_filled():
        raise Conflict(
            Code.STORE_NOT_EMPTY,
            "The database has agents or sessions, and an older schema may have no place for all of "
            "them; back it up with pg_dump and add --force to go back all the same.",
        )
