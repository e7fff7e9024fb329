/** Parses the URL of the page. */

export interface Route {
  readonly section: "sessions" | "agents" | "timeline";
  readonly id: string | null;
  readonly query: URLSearchParams;
}

export function parseRoute(path: string, search: string): Route {
  const [, section = "", id = ""] = path.split("/");
  const known = section === "agents" || section === "timeline" ? section : "sessions";
  return { section: known, id: id === "" ? null : decodeSegment(id), query: new URLSearchParams(search) };
}

function decodeSegment(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    // Malformed percent-encoding: keep it as it is; no resource has this id.
    return name;
  }
}

/** Return the number of the message to open a session at, or null. */
export function parseMessageNumber({ query }: Route): number | null {
  const at = Number(query.get("at"));
  return Number.isInteger(at) && at > 0 ? at : null;
}
