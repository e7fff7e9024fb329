"""Which page fits: drawn, where a terminal can be redrawn and somebody looks at it."""

import sys

from holdfast.cli.live.drawing import LivePage
from holdfast.cli.live.regions import BareRegion, PromptRegion, Region
from holdfast.cli.manners import Manner
from holdfast.cli.output import Printer
from holdfast.cli.pages import Page, PlainPage
from holdfast.cli.terminal import can_redraw, is_colored


def fitting_page(printer: Printer, manner: Manner) -> Page:
    """Return where a conversation is written."""
    if not can_redraw(sys.stdout) or printer.is_json:
        return PlainPage(printer)
    colored = is_colored(sys.stdout, printer.settings.color)
    # Without colours nothing has to be drawn twice, unless somebody types below it.
    if not manner.converses and not colored:
        return PlainPage(printer)
    region: Region = PromptRegion() if manner.converses else BareRegion()
    return LivePage(printer, region, is_colored=colored, hears_users=manner.converses)
