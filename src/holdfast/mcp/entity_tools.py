"""Tools about what sessions produce: feature units, releases, decisions, validations."""

from typing import Final

from holdfast.domain.tokens import Scope
from holdfast.mcp.arguments import Argument
from holdfast.mcp.history_tools import CURSOR, KEY, LIMIT, ORDER, ORDER_BY
from holdfast.mcp.table import Asked, Told, Tool
from holdfast.observations.model import OBJECT, SIBLINGS, ChoiceShape, EntityType
from holdfast.observations.queries import PAGE, Direction, EntityOrder, EntityQuery, SubmitResult
from holdfast.services.history_forms import EntityList, entity_list


async def submit_entity(asked: Asked) -> Told:
    """Take a claim about an entity that is no session."""
    submitted = await asked.house.observations.submit_entity(
        asked.owner,
        asked.get("entity_type"),
        asked.get("fields"),
        idempotency_key=asked.get(KEY.name),
        source=asked.source,
    )
    return Told(submitted)


async def query_entities(asked: Asked) -> Told:
    """Return a page of entities of a type."""
    query = EntityQuery(
        entity_type=EntityType(asked.get("entity_type")),
        filters=asked.get("filters"),
        order_by=EntityOrder(asked.get("order_by", EntityOrder.LAST_OBSERVATION_AT)),
        order=Direction(asked.get("order", Direction.DESC)),
        limit=asked.get("limit", PAGE),
    )
    page = await asked.house.observations.entities(asked.owner, query, cursor=asked.get("cursor"))
    return Told(entity_list(page))


TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="submit_entity",
        title="Submit what is known of an entity",
        description=(
            "Write down what is known of a feature unit, a release, a decision or a validation. "
            "Each is known by its own id, or by what was decided or checked and when."
        ),
        takes=(
            Argument("entity_type", ChoiceShape(tuple(SIBLINGS)), "What it is.", is_required=True),
            Argument("fields", OBJECT, "What is known of it, by the type's schema.", True),
            KEY,
        ),
        gives=(SubmitResult,),
        act=submit_entity,
        needs=Scope.WRITE,
    ),
    Tool(
        name="query_entities",
        title="List entities",
        description=(
            "List entities of a type by what their snapshots hold. Filters are dotted paths, each "
            "with a value, with {contains}, or with {gte, lte}."
        ),
        takes=(
            Argument(
                "entity_type", ChoiceShape(tuple(EntityType)), "Of which type.", is_required=True
            ),
            Argument("filters", OBJECT, 'Such as {"status": "planning"}.'),
            ORDER_BY,
            ORDER,
            LIMIT,
            CURSOR,
        ),
        gives=(EntityList,),
        act=query_entities,
    ),
)
