"""The one table of tools."""

from collections.abc import Mapping
from typing import Final

from holdfast.mcp.entity_tools import TOOLS as ENTITY_TOOLS
from holdfast.mcp.history_tools import TOOLS as HISTORY_TOOLS
from holdfast.mcp.search_tools import TOOLS as SEARCH_TOOLS
from holdfast.mcp.session_tools import TOOLS as SESSION_TOOLS
from holdfast.mcp.table import Tool

TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool for tool in (*HISTORY_TOOLS, *SEARCH_TOOLS, *SESSION_TOOLS, *ENTITY_TOOLS)
}
