/** Calls that may have acted or not, because something died in between: a person decides. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { server, told } from "../api/client";
import type { Call, Session } from "../api/forms";
import { queries, unknownCallsQuery } from "../api/queries";
import { Trouble } from "../app/Notice";
import { visible } from "../text/visible";
import { summaryOf } from "./tool_words";

export function UnknownCalls({ session }: { session: Session }) {
  const { data } = useQuery(unknownCallsQuery(session.id));
  return data?.data.map((call) => <UnknownCall key={call.id} call={call} />);
}

type How = "retry" | "skip" | "mark_done";

function UnknownCall({ call }: { call: Call }) {
  const [result, setResult] = useState("");
  const [isDone, setDone] = useState(false);
  const settle = useMutation({
    mutationFn: (how: How) =>
      told(
        server.POST("/v1/sessions/{session_id}/calls/{call_id}/settle", {
          params: { path: { session_id: call.session_id, call_id: call.id } },
          body: { how, ...(how === "mark_done" ? { result } : {}) },
        }),
      ),
    onSettled: () => void queries.invalidateQueries({ queryKey: ["session", call.session_id, "unknown"] }),
  });
  return (
    <section className="question unknown" aria-label={`The outcome of ${call.name} is unknown`}>
      <header>
        <b>Nobody knows whether {visible(call.name)} has acted.</b>
        <span className="kind">{call.effect}</span>
      </header>
      <pre className="asked" tabIndex={0}>
        {visible(summaryOf(call.arguments) || call.name)}
      </pre>
      <p className="hint">It had begun when the server or its program ended. Look, then say how to go on.</p>
      {isDone && (
        <label className="field">
          What came of it
          <textarea rows={2} value={result} onChange={(event) => setResult(event.target.value)} />
        </label>
      )}
      <div className="row-of-buttons">
        <button type="button" disabled={settle.isPending} onClick={() => settle.mutate("retry")}>
          Run it again
        </button>
        <button type="button" disabled={settle.isPending} onClick={() => settle.mutate("skip")}>
          Skip it
        </button>
        <button
          type="button"
          disabled={settle.isPending || (isDone && result.trim() === "")}
          onClick={() => (isDone ? settle.mutate("mark_done") : setDone(true))}
        >
          {isDone ? "Write that down" : "It is done …"}
        </button>
      </div>
      <Trouble error={settle.error} />
    </section>
  );
}
