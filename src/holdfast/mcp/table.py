"""Tools as data: one row says all about a tool.

From the same rows come the listing with its schemas, the judging of arguments, and who may call.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from holdfast.domain.ids import Owner
from holdfast.domain.tokens import Caller, Scope
from holdfast.mcp.arguments import Argument, judged
from holdfast.mcp.house import House
from holdfast.mcp.schemas import Schema, input_schema, output_schema
from holdfast.observations.model import FieldShape


class Asked(Struct, frozen=True, kw_only=True):
    """A call as a tool sees it: for whom, through which client, with which arguments."""

    house: House
    caller: Caller
    source: str
    arguments: Mapping[str, Any]

    @property
    def owner(self) -> Owner:
        """Return for whom the call acts."""
        return self.caller.owner

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return an argument, or what is meant when it was not sent."""
        return self.arguments.get(name, otherwise)


class Told(Struct, frozen=True):
    """An answer; in words it may be one member only, because a form has to be an object."""

    form: Struct
    words: str | None = None


class Tool(Struct, frozen=True, kw_only=True):
    """One row of the table.

    `takes` are its arguments; an open tool takes others beside them and judges them itself.
    `gives` are the forms its answer may have. A tool that only reads has no scope beyond that.
    """

    name: str
    title: str
    description: str
    takes: tuple[Argument | FieldShape, ...]
    gives: tuple[type[Struct], ...]
    act: Callable[[Asked], Awaitable[Told]]
    is_open: bool = False
    needs: Scope = Scope.READ
    is_idempotent: bool = True
    is_destructive: bool = False

    @property
    def is_read_only(self) -> bool:
        """Tell whether calling it changes nothing."""
        return self.needs is Scope.READ

    def input_schema(self) -> Schema:
        """Return the schema of its arguments."""
        return input_schema(self.takes, is_open=self.is_open)

    def output_schema(self) -> Schema:
        """Return the schema of its answers."""
        return output_schema(self.gives)

    async def called(self, asked: Asked) -> Told:
        """Judge who calls and with what, then answer."""
        asked.caller.require(self.needs)
        if self.is_open:
            return await self.act(asked)
        taken = tuple(each for each in self.takes if isinstance(each, Argument))
        return await self.act(
            Asked(
                house=asked.house,
                caller=asked.caller,
                source=asked.source,
                arguments=judged(taken, asked.arguments),
            )
        )
