import type { Standing } from "./standing";

export function Status({ standing }: { standing: Standing }) {
  return (
    <span className={`status ${standing.replace(" ", "-")}`}>
      <i aria-hidden="true" />
      {standing === "asking" ? "waits for you" : standing}
    </span>
  );
}
