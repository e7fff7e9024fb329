/** Where the page is: the address is the state, so every place can be bookmarked. */
import { useSyncExternalStore } from "react";

import { placeOf, type Place } from "./place";

const MOVED = "holdfast:moved";

interface Way {
  readonly replace?: boolean;
  /** Whoever goes there was writing, and goes on with it. */
  readonly toWrite?: boolean;
}

export function go(address: string, { replace = false, toWrite = false }: Way = {}): void {
  if (address === location.pathname + location.search) return;
  if (replace) history.replaceState({ toWrite }, "", address);
  else history.pushState({ toWrite }, "", address);
  dispatchEvent(new Event(MOVED));
}

/** Tell whether somebody came here to write on. */
export function isToWrite(): boolean {
  return (history.state as { toWrite?: boolean } | null)?.toWrite === true;
}

export function usePlace(): Place {
  const address = useSyncExternalStore(subscribe, () => location.pathname + location.search);
  const [path = "/", search = ""] = address.split(/(?=\?)/);
  return placeOf(path, search);
}

function subscribe(changed: () => void): () => void {
  addEventListener("popstate", changed);
  addEventListener(MOVED, changed);
  return () => {
    removeEventListener("popstate", changed);
    removeEventListener(MOVED, changed);
  };
}
