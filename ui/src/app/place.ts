/** What an address says. */

export interface Place {
  readonly section: "sessions" | "agents" | "timeline";
  readonly id: string | null;
  readonly query: URLSearchParams;
}

export function placeOf(path: string, search: string): Place {
  const [, section = "", id = ""] = path.split("/");
  const known = section === "agents" || section === "timeline" ? section : "sessions";
  return { section: known, id: id === "" ? null : decoded(id), query: new URLSearchParams(search) };
}

function decoded(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    // Not spelled as addresses are: nothing has this name.
    return name;
  }
}

/** Return the number of the message that a session is to be opened at, where one is asked for. */
export function messageOf({ query }: Place): number | null {
  const at = Number(query.get("at"));
  return Number.isInteger(at) && at > 0 ? at : null;
}
