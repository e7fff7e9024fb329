"""What a model could write so that a careless page runs or fetches it."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

BEACON = "http://beacon.test"
# Each is put into every place of every frame below.
CALLS = ("hit(1)", "alert(1)", "parent.hit(2)", "eval('hit(3)')", "top['hit'](4)", "hit`5`")
ELEMENTS = (
    "<img src=x onerror={0}>",
    "<svg onload={0}>",
    "<svg><script>{0}</script></svg>",
    "<script>{0}</script>",
    "<body onload={0}>",
    "<details open ontoggle={0}>x</details>",
    "<iframe srcdoc='<script>{0}</script>'></iframe>",
    "<iframe src='javascript:{0}'></iframe>",
    "<a href='javascript:{0}'>x</a>",
    "<video><source onerror={0}></video>",
    "<input autofocus onfocus={0}>",
    "<math><mtext></p><style><img src=x onerror={0}>",
    "<form><button formaction='javascript:{0}'>x</button></form>",
    "<marquee onstart={0}>x</marquee>",
    "<object data='data:text/html,<script>{0}</script>'></object>",
    "<style>@keyframes x{{}}</style><b style='animation-name:x' onanimationstart={0}>x</b>",
    "<template><script>{0}</script></template><img/src/onerror={0}>",
)
FRAMES = (
    "{0}",
    "`</code>{0}",
    "\n\n```html\n{0}\n```",
    "| a |\n|---|\n| {0} |",
    "- {0}",
    "**{0}**",
)
MARKDOWN = (
    "[x](javascript:{0})",
    "[x](JaVaScRiPt:{0})",
    "[x](java\tscript:{0})",
    "[x](&#106;avascript:{0})",
    "[x](data:text/html;base64,PHNjcmlwdD5oaXQoMSk8L3NjcmlwdD4=)",
    "[x](vbscript:{0})",
    "<javascript:{0}>",
    "[x]\n\n[x]: javascript:{0}",
    '![x" onerror="{0}](x)',
    '[x](http://a" onmouseover="{0})',
)
BEACONS = (
    "![x]({0})",
    "![x]({0} 'title')",
    "![x][1]\n\n[1]: {0}",
    "[![x]({0})]({0})",
    "![]({0})",
    "<img src='{0}'>",
    "<img srcset='{0} 1x'>",
    "<picture><source srcset='{0}'><img></picture>",
    "<video poster='{0}' src='{0}' autoplay></video>",
    "<audio src='{0}' autoplay></audio>",
    "<link rel=stylesheet href='{0}'>",
    "<link rel=prefetch href='{0}'>",
    "<link rel=dns-prefetch href='{0}'>",
    "<style>@import '{0}';</style>",
    "<b style=\"background:url('{0}')\">x</b>",
    "<iframe src='{0}'></iframe>",
    "<object data='{0}'></object>",
    "<embed src='{0}'>",
    "<meta http-equiv=refresh content='0;url={0}'>",
    "<base href='{0}'>",
    "<svg><image href='{0}'/></svg>",
    "<svg><use href='{0}#x'/></svg>",
    "<script src='{0}'></script>",
    "<body background='{0}'>",
    "<input type=image src='{0}'>",
    "<form action='{0}'><button autofocus>x</button></form>",
    "<a href='x' ping='{0}'>x</a>",
    "| a |\n|---|\n| ![x]({0}) |",
    "> ![x]({0})",
    "- ![x]({0})",
)


def scripts() -> Iterator[str]:
    """Yield everything that would run where text is taken for a page."""
    for element, call, frame in itertools.product(ELEMENTS, CALLS[:2], FRAMES):
        yield frame.format(element.format(call))
    for form, call in itertools.product(MARKDOWN, CALLS):
        yield form.format(call)
    yield from _public()


def beacons() -> Iterator[str]:
    """Yield everything that would be fetched, each with an address of its own."""
    for number, form in enumerate(itertools.chain(BEACONS, BEACONS)):
        scheme = BEACON if number < len(BEACONS) else BEACON.removeprefix("http:")
        yield form.format(f"{scheme}/{number}")


def _public() -> Iterator[str]:
    """Yield the lines of public lists, where somebody has put them."""
    folder = os.environ.get("HOLDFAST_CORPORA")
    for path in sorted(Path(folder).rglob("*XSS*/**/*.txt")) if folder else ():
        yield from (line for line in path.read_text("utf-8", "replace").splitlines() if line)
