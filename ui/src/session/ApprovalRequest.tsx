/** A pending approval. It shows the whole request, and the answer carries its digest, so that it covers nothing else. */
import { useMutation } from "@tanstack/react-query";

import { server, unwrap } from "../api/client";
import { queryClient } from "../api/queries";
import type { Approval } from "../api/types";
import { ErrorMessage } from "../app/notices";
import { Diff } from "../text/Diff";
import { escapeInvisible } from "../text/invisible";
import { splitQuestion } from "./tool_summary";

type Option = Approval["options"][number];

export function ApprovalRequest({ approval }: { approval: Approval }) {
  const answer = useMutation({
    mutationFn: (option: Option) => sendAnswer(approval, option),
    onSettled: () => {
      void queryClient.invalidateQueries({ queryKey: ["session", approval.session_id, "approvals"] });
      void queryClient.invalidateQueries({ queryKey: ["approvals", "waiting"] });
    },
  });
  const { head, lines } = splitQuestion(approval.question);
  return (
    <section className="question" aria-label={`${approval.tool} needs approval`}>
      <header>
        <b>Allow {escapeInvisible(approval.tool)}?</b>
        <span className="kind">{approval.class}</span>
      </header>
      <pre className="request" tabIndex={0}>
        {escapeInvisible(head)}
      </pre>
      {lines && <Diff lines={lines} name="full change" showAll />}
      <details className="collapsible">
        <summary>Arguments</summary>
        <pre className="plain" tabIndex={0}>
          {escapeInvisible(JSON.stringify(approval.arguments, null, 2))}
        </pre>
      </details>
      {approval.covers && <p className="hint">Allowing it for the session covers: {escapeInvisible(approval.covers)}</p>}
      <div className="button-row">
        {approval.options.map((option) => (
          <button
            key={option.id}
            type="button"
            className={option.kind === "allow_once" ? "primary" : isRejection(option) ? "danger" : ""}
            disabled={answer.isPending}
            onClick={() => answer.mutate(option)}
          >
            {escapeInvisible(option.name)}
          </button>
        ))}
      </div>
      <ErrorMessage error={answer.error} />
    </section>
  );
}

const isRejection = (option: Option): boolean => option.kind.startsWith("reject");

function sendAnswer(approval: Approval, option: Option) {
  return unwrap(
    server.POST("/v1/sessions/{session_id}/approvals/{approval_id}", {
      params: { path: { session_id: approval.session_id, approval_id: approval.id } },
      body: {
        decision: isRejection(option) ? "deny" : "allow",
        scope: option.kind === "allow_always" ? "session" : "once",
        option_id: option.id,
        digest: approval.digest,
      },
    }),
  );
}
