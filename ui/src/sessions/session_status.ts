/** The status of a session as the page shows it. */
import type { Session } from "../api/types";

export type SessionStatus = "new" | "running" | "waiting" | "paused" | "failed" | "stopped" | "idle" | "closed" | "cancelled";

/** The query parameter of each status; where two share one, the page filters the result. */
export const STATUS_FILTERS: Readonly<Record<SessionStatus, { readonly status: string } | { readonly state: string }>> = {
  running: { status: "running" },
  waiting: { status: "running" },
  paused: { status: "running" },
  idle: { state: "idle" },
  stopped: { state: "idle" },
  failed: { status: "failed" },
  new: { state: "pending" },
  closed: { state: "completed" },
  cancelled: { state: "cancelled" },
};
export const SESSION_STATUSES = Object.keys(STATUS_FILTERS) as readonly SessionStatus[];

/** Return the label of a status. */
export function statusLabel(status: SessionStatus): string {
  if (status === "waiting") return "needs approval";
  return status === "paused" ? "waiting" : status;
}

export function sessionStatus(session: Session, isWaiting: boolean): SessionStatus {
  if (isWaiting) return "waiting";
  if (session.waiting !== null) return "paused";
  if (session.status === "running") return "running";
  if (session.status === "failed") return "failed";
  switch (session.state) {
    case "pending":
      return "new";
    case "completed":
      return "closed";
    case "cancelled":
      return "cancelled";
    default:
      return session.last_stop === "aborted" || session.last_stop === "interrupted" ? "stopped" : "idle";
  }
}
