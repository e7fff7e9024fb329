/** Where a session stands, in one word for people. */
import type { Session } from "../api/forms";

export type Standing = "new" | "running" | "asking" | "failed" | "stopped" | "idle" | "closed" | "given up";

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
