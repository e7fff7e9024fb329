/** Client-side navigation: the URL is the state, so every view can be bookmarked. */
import { useSyncExternalStore } from "react";

import { parseRoute, type Route } from "./route";

const NAVIGATED = "holdfast:navigated";

interface NavigateOptions {
  readonly replace?: boolean;
  /** Focus the message field of the next view, because the user was typing. */
  readonly focusComposer?: boolean;
}

export function navigate(url: string, { replace = false, focusComposer = false }: NavigateOptions = {}): void {
  if (url === location.pathname + location.search) return;
  if (replace) history.replaceState({ focusComposer }, "", url);
  else history.pushState({ focusComposer }, "", url);
  dispatchEvent(new Event(NAVIGATED));
}

/** Whether the message field of this view should take the focus. */
export function shouldFocusComposer(): boolean {
  return (history.state as { focusComposer?: boolean } | null)?.focusComposer === true;
}

export function useRoute(): Route {
  const url = useSyncExternalStore(subscribe, () => location.pathname + location.search);
  const [path = "/", search = ""] = url.split(/(?=\?)/);
  return parseRoute(path, search);
}

function subscribe(changed: () => void): () => void {
  addEventListener("popstate", changed);
  addEventListener(NAVIGATED, changed);
  return () => {
    removeEventListener("popstate", changed);
    removeEventListener(NAVIGATED, changed);
  };
}
