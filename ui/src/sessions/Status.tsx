import { worded, type Standing } from "./standing";

export function Status({ standing }: { standing: Standing }) {
  return (
    <span className={`status ${standing.replace(" ", "-")}`}>
      <i aria-hidden="true" />
      {worded(standing)}
    </span>
  );
}

/** A fork has its parent's title; the sign tells them apart. */
export function ForkMark() {
  return (
    <span className="fork-mark" title="A fork of another session">
      <svg viewBox="0 0 12 12" aria-hidden="true">
        <path d="M3 1v10M3 7c4 0 6-1.500 6-6" fill="none" stroke="currentcolor" strokeWidth="1.400" strokeLinecap="round" />
      </svg>
      <span className="unseen">fork: </span>
    </span>
  );
}
