/** What a paused turn waits for. Calls that a client has to run can be answered here. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { server, unwrap } from "../api/client";
import { requestedCallsQuery } from "../api/queries";
import type { Call, Session } from "../api/types";
import { ErrorMessage } from "../app/notices";
import { escapeInvisible } from "../text/invisible";
import { summarizeCall } from "./tool_summary";

/** Questions that wait for an approval are shown by themselves. */
const ASKED_ELSEWHERE = new Set(["approval", "budget"]);

export function TurnWait({ session }: { session: Session }) {
  const wait = session.waiting;
  // Whatever the reason: calls may be requested beside one that waits for an approval.
  const { data } = useQuery({ ...requestedCallsQuery(session.id), enabled: wait !== null });
  if (wait === null) return null;
  return (
    <>
      {!ASKED_ELSEWHERE.has(wait.reason) && (
        <p className="hint" role="status">
          {escapeInvisible(wait.text)}
        </p>
      )}
      {data?.data.map((call) => (
        <RequestedCall key={call.id} call={call} />
      ))}
    </>
  );
}

type Answer = { status: "ok"; result: unknown } | { status: "error"; error: { message: string } };

function RequestedCall({ call }: { call: Call }) {
  const [text, setText] = useState("");
  const answer = useMutation({
    mutationFn: (body: Answer) =>
      unwrap(
        server.POST("/v1/sessions/{session_id}/calls/{call_id}/result", {
          params: { path: { session_id: call.session_id, call_id: call.id } },
          body,
        }),
      ),
  });
  const isBlocked = answer.isPending || text.trim() === "";
  return (
    <section className="question" aria-label={`${call.name} waits for a client`}>
      <header>
        <b>{escapeInvisible(call.name)}</b>
        <span className="kind">{call.effect}</span>
      </header>
      <pre className="request" tabIndex={0}>
        {escapeInvisible(summarizeCall(call.arguments) || JSON.stringify(call.arguments))}
      </pre>
      <label className="field">
        Result (JSON or text) or error message
        <textarea rows={2} value={text} onChange={(event) => setText(event.target.value)} />
      </label>
      <div className="button-row">
        <button type="button" disabled={isBlocked} onClick={() => answer.mutate({ status: "ok", result: parseResult(text) })}>
          Send result
        </button>
        <button
          type="button"
          disabled={isBlocked}
          onClick={() => answer.mutate({ status: "error", error: { message: text } })}
        >
          Report an error
        </button>
      </div>
      <ErrorMessage error={answer.error} />
    </section>
  );
}

/** Return the JSON value of a text, or the text itself if it is not JSON. */
function parseResult(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
