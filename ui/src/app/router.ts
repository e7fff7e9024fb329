/** Where the page is: the address is the state, so every place can be bookmarked. */
import { useSyncExternalStore } from "react";

export interface Place {
  readonly section: "sessions" | "agents" | "timeline";
  readonly id: string | null;
  readonly query: URLSearchParams;
}

const MOVED = "holdfast:moved";

export function placeOf(path: string, search: string): Place {
  const [, section = "", id = ""] = path.split("/");
  const known = section === "agents" || section === "timeline" ? section : "sessions";
  return { section: known, id: id === "" ? null : decodeURIComponent(id), query: new URLSearchParams(search) };
}

export function go(address: string, { replace = false }: { replace?: boolean } = {}): void {
  if (address === location.pathname + location.search) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new Event(MOVED));
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
