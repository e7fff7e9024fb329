/** A warning when few turns are left, and what can be done when none is. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { newId, server, unwrap } from "../api/client";
import { defaultsQuery, queryClient } from "../api/queries";
import type { Session } from "../api/types";
import { ErrorMessage } from "../app/notices";
import { navigate } from "../app/router";

const FEW_TURNS = 10;
const MAX_TURN_CAP = 1_000_000;

/** Return how many turns are left after the queued ones, if they are few; null otherwise. */
export function useTurnsLeft(session: Session): number | null {
  const isOpen = session.state === "pending" || session.state === "idle" || session.state === "running";
  // A spent budget leaves no turns either, and has a question of its own.
  const isSpent = session.budget !== null && session.budget.microcents > 0 && (session.cost.microcents ?? 0) >= session.budget.microcents;
  const { data } = useQuery({
    queryKey: ["session", session.id, "turns_left", session.turn_cap, session.settled],
    queryFn: () => unwrap(server.POST("/v1/sessions/{session_id}/resume", { params: { path: { session_id: session.id } }, body: {} })),
    enabled: isOpen && !isSpent && session.settled + FEW_TURNS >= session.turn_cap,
  });
  if (data === undefined) return null;
  const left = data.turns_left - (session.turn - session.settled);
  return left <= FEW_TURNS ? Math.max(left, 0) : null;
}

export function TurnLimit({ session, left }: { session: Session; left: number }) {
  const [error, setError] = useState<unknown>(null);
  const defaults = useQuery(defaultsQuery);
  const raised = Math.min(session.turn_cap + (defaults.data?.attended_turn_cap ?? session.turn_cap), MAX_TURN_CAP);
  const path = { session_id: session.id };
  const raise = () =>
    void unwrap(server.PATCH("/v1/sessions/{session_id}", { params: { path }, body: { turn_cap: raised } })).then(
      (changed) => queryClient.setQueryData(["session", session.id], changed),
      setError,
    );
  const fork = () =>
    void unwrap(server.POST("/v1/sessions/{session_id}/fork", { params: { path }, body: { id: newId() } })).then(
      (created) => navigate(`/sessions/${created.id}`, { focusComposer: true }),
      setError,
    );
  return (
    <div className="hint" role="status">
      <p>
        {left > 0
          ? `${left} turns are left in this session.`
          : `This session has used its ${session.turn_cap} turns. limits.attended_turn_cap is the cap of new sessions.`}
      </p>
      <button type="button" onClick={raise}>
        Raise to {raised} turns
      </button>
      <button type="button" onClick={fork}>
        Fork
      </button>
      <ErrorMessage error={error} />
    </div>
  );
}
