/** Entry point: starts loading the data of the first screen while the page bundle is still loading. */
import { parseRoute } from "./app/route";
import { applyTheme, currentTheme } from "./app/theme";
import { prefetchSession } from "./session/session_loader";

const MAX_WAIT_MS = 150;

applyTheme(currentTheme());
const prefetch = prefetchSession(parseRoute(location.pathname, location.search));
const timeout = new Promise((resolve) => setTimeout(resolve, MAX_WAIT_MS));
// Render once with data if it arrives within the limit; otherwise render without it.
void Promise.all([import("./page"), Promise.race([prefetch, timeout])]).then(([{ renderPage }]) => renderPage());
