/** A question that waits for somebody: all of it, and an answer that holds for exactly this. */
import { useMutation } from "@tanstack/react-query";

import { server, told } from "../api/client";
import type { Approval } from "../api/forms";
import { queries } from "../api/queries";
import { Trouble } from "../app/Notice";
import { Diff } from "../text/Diff";
import { visible } from "../text/visible";
import { questionOf } from "./tool_words";

type Option = Approval["options"][number];

export function Question({ approval }: { approval: Approval }) {
  const answer = useMutation({
    mutationFn: (option: Option) => answered(approval, option),
    onSettled: () => {
      void queries.invalidateQueries({ queryKey: ["session", approval.session_id, "approvals"] });
      void queries.invalidateQueries({ queryKey: ["approvals", "waiting"] });
    },
  });
  const { head, lines } = questionOf(approval.question);
  return (
    <section className="question" aria-label={`${approval.tool} waits for your answer`}>
      <header>
        <b>May {visible(approval.tool)} do this?</b>
        <span className="kind">{approval.class}</span>
      </header>
      <pre className="asked" tabIndex={0}>
        {visible(head)}
      </pre>
      {lines && <Diff lines={lines} name="the whole change" isWhole />}
      <details className="fold">
        <summary>Arguments as the agent gave them</summary>
        <pre className="plain" tabIndex={0}>
          {visible(JSON.stringify(approval.arguments, null, 2))}
        </pre>
      </details>
      {approval.covers && <p className="hint">For the whole session would cover: {visible(approval.covers)}</p>}
      <div className="row-of-buttons">
        {approval.options.map((option) => (
          <button
            key={option.id}
            type="button"
            className={option.kind === "allow_once" ? "primary" : isRefusal(option) ? "danger" : ""}
            disabled={answer.isPending}
            onClick={() => answer.mutate(option)}
          >
            {visible(option.name)}
          </button>
        ))}
      </div>
      <Trouble error={answer.error} />
    </section>
  );
}

const isRefusal = (option: Option): boolean => option.kind.startsWith("reject");

function answered(approval: Approval, option: Option) {
  return told(
    server.POST("/v1/sessions/{session_id}/approvals/{approval_id}", {
      params: { path: { session_id: approval.session_id, approval_id: approval.id } },
      body: {
        decision: isRefusal(option) ? "deny" : "allow",
        scope: option.kind === "allow_always" ? "session" : "once",
        option_id: option.id,
        digest: approval.digest,
      },
    }),
  );
}
