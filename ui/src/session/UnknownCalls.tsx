/** Calls with an unknown outcome, because a process ended while they ran: the user settles them. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { server, unwrap } from "../api/client";
import { queryClient, unknownCallsQuery } from "../api/queries";
import type { Call, Session } from "../api/types";
import { ErrorMessage } from "../app/notices";
import { escapeInvisible } from "../text/invisible";
import { summarizeCall } from "./tool_summary";

export function UnknownCalls({ session }: { session: Session }) {
  const { data } = useQuery(unknownCallsQuery(session.id));
  return data?.data.map((call) => <UnknownCall key={call.id} call={call} />);
}

type Settlement = "retry" | "skip" | "mark_done";

function UnknownCall({ call }: { call: Call }) {
  const [result, setResult] = useState("");
  const [isDone, setDone] = useState(false);
  const settle = useMutation({
    mutationFn: (how: Settlement) =>
      unwrap(
        server.POST("/v1/sessions/{session_id}/calls/{call_id}/settle", {
          params: { path: { session_id: call.session_id, call_id: call.id } },
          body: { how, ...(how === "mark_done" ? { result } : {}) },
        }),
      ),
    onSettled: () => void queryClient.invalidateQueries({ queryKey: ["session", call.session_id, "unknown"] }),
  });
  return (
    <section className="question unknown" aria-label={`The outcome of ${call.name} is unknown`}>
      <header>
        <b>Outcome unknown: {escapeInvisible(call.name)}</b>
        <span className="kind">{call.effect}</span>
      </header>
      <pre className="request" tabIndex={0}>
        {escapeInvisible(summarizeCall(call.arguments) || call.name)}
      </pre>
      <p className="hint">The call had started when its process ended. Check what it did, then choose how to continue.</p>
      {isDone && (
        <label className="field">
          Outcome
          <textarea rows={2} value={result} onChange={(event) => setResult(event.target.value)} />
        </label>
      )}
      <div className="button-row">
        <button type="button" disabled={settle.isPending} onClick={() => settle.mutate("retry")}>
          Run again
        </button>
        <button type="button" disabled={settle.isPending} onClick={() => settle.mutate("skip")}>
          Skip
        </button>
        <button
          type="button"
          disabled={settle.isPending || (isDone && result.trim() === "")}
          onClick={() => (isDone ? settle.mutate("mark_done") : setDone(true))}
        >
          {isDone ? "Save outcome" : "Mark as done …"}
        </button>
      </div>
      <ErrorMessage error={settle.error} />
    </section>
  );
}
