import { statusLabel, type SessionStatus } from "./session_status";

export function Status({ status }: { status: SessionStatus }) {
  return (
    <span className={`status ${status}`}>
      <i aria-hidden="true" />
      {statusLabel(status)}
    </span>
  );
}

/** Marks a fork, which has the same title as its parent. */
export function ForkIcon() {
  return (
    <span className="fork-icon" title="A fork of another session">
      <svg viewBox="0 0 12 12" aria-hidden="true">
        <path d="M3 1v10M3 7c4 0 6-1.500 6-6" fill="none" stroke="currentcolor" strokeWidth="1.400" strokeLinecap="round" />
      </svg>
      <span className="visually-hidden">fork: </span>
    </span>
  );
}
