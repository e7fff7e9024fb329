/** Where a session stands, in one word for people. */
import type { Session } from "../api/forms";

export type Standing = "new" | "running" | "asking" | "failed" | "stopped" | "idle" | "closed" | "given up";

/** What the server is asked for by each; where two ask for the same, the page tells them apart. */
export const ASKED: Readonly<Record<Standing, { readonly status: string } | { readonly state: string }>> = {
  running: { status: "running" },
  asking: { status: "running" },
  idle: { state: "idle" },
  stopped: { state: "idle" },
  failed: { status: "failed" },
  new: { state: "pending" },
  closed: { state: "completed" },
  "given up": { state: "cancelled" },
};
export const STANDINGS = Object.keys(ASKED) as readonly Standing[];

/** Return the words for it: the same wherever it is shown or chosen. */
export function worded(standing: Standing): string {
  return standing === "asking" ? "waits for you" : standing;
}

export function standingOf(session: Session, isAsking: boolean): Standing {
  if (isAsking) return "asking";
  if (session.status === "running") return "running";
  if (session.status === "failed") return "failed";
  switch (session.state) {
    case "pending":
      return "new";
    case "completed":
      return "closed";
    case "cancelled":
      return "given up";
    default:
      return session.last_stop === "aborted" || session.last_stop === "interrupted" ? "stopped" : "idle";
  }
}
