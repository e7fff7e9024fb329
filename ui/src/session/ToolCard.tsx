/** A tool call, or a step of a loop: what was called, its result and its file changes. */
import { useState } from "react";

import type { Approval, Message, Part } from "../api/types";
import { Code } from "../text/Code";
import { Diff } from "../text/Diff";
import { formatDuration, formatMilliseconds } from "../text/format";
import { escapeInvisible } from "../text/invisible";
import { ApprovalRequest } from "./ApprovalRequest";
import { asFields } from "./event_data";
import { fileChanges, formatResult, summarizeCall, summarizeResult } from "./tool_summary";

interface Props {
  readonly call: Message;
  readonly result: Message | null;
  readonly approval: Approval | null;
  readonly isStarted: boolean;
}

export function ToolCard({ call, result, approval, isStarted }: Props) {
  const name = String(call.content["name"]);
  const args = asFields(call.content["arguments"]) ?? {};
  const status = approval ? "waiting" : result ? (result.result_status ?? "ok") : isStarted ? "running" : "pending";
  const changes = fileChanges(name, args, result?.content["result"]);
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <details className={`tool ${status}`} open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          <span className="tool-name">{escapeInvisible(name)}</span>
          <span className="tool-summary">{escapeInvisible(summarizeCall(args))}</span>
          {showsChanges(status) && <DiffStat changes={changes} />}
          {result && <span className="tool-time">{formatDuration(call.created_at, result.created_at)}</span>}
          <span className="tool-status">{STATUS_LABELS[status] ?? status}</span>
        </summary>
        {isOpen && <ToolDetails args={args} result={result} changes={changes} />}
      </details>
      {approval && <ApprovalRequest approval={approval} />}
    </>
  );
}

/** A step of a turn that a Python function ran. */
export function StepCard({ step }: { step: Extract<Part, { type: "step" }> }) {
  const status = step.status ?? "ok";
  const error = step.error?.message ?? null;
  const hasResult = step.result !== null && step.result !== undefined;
  const [isOpen, setOpen] = useState(false);
  return (
    <details className={`tool ${status}`} open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span className="tool-name">{escapeInvisible(step.name)}</span>
        <span className="tool-summary">{escapeInvisible(error ?? summarizeResult(step.result))}</span>
        <span className="tool-time">{formatMilliseconds(step.milliseconds ?? 0)}</span>
        <span className="tool-status">{STATUS_LABELS[status] ?? status}</span>
      </summary>
      {isOpen && (
        <div className="tool-details">
          {error !== null && <p className="failure">{escapeInvisible(error)}</p>}
          {hasResult && <Code text={escapeInvisible(formatResult(step.result))} language={typeof step.result === "string" ? "" : "json"} />}
          {error === null && !hasResult && <p className="notice">No result.</p>}
        </div>
      )}
    </details>
  );
}

/** Whether a call with this status has changed files, or may still do so. */
function showsChanges(status: string): boolean {
  return status === "ok" || status === "waiting" || status === "running" || status === "pending";
}

const STATUS_LABELS: Readonly<Record<string, string>> = {
  waiting: "needs approval",
  error: "failed",
  pending: "pending",
  running: "running",
  unknown: "outcome unknown",
};

function DiffStat({ changes }: { changes: ReturnType<typeof fileChanges> }) {
  const lines = changes.flatMap((each) => each.lines);
  if (lines.length === 0) return null;
  const countLines = (kind: string) => lines.filter((line) => line.kind === kind).length;
  return (
    <span className="diff-stat">
      <b className="added">+{countLines("added")}</b> <b className="removed">−{countLines("removed")}</b>
    </span>
  );
}

interface ToolDetailsProps {
  readonly args: Readonly<Record<string, unknown>>;
  readonly result: Message | null;
  readonly changes: ReturnType<typeof fileChanges>;
}

function ToolDetails({ args, result, changes }: ToolDetailsProps) {
  const error = result?.content["error"];
  const output = result?.content["result"];
  return (
    <div className="tool-details">
      {changes.length > 0 ? (
        changes.map((change, index) => <Diff key={index} name={escapeInvisible(change.path)} lines={change.lines} />)
      ) : (
        <Code text={escapeInvisible(JSON.stringify(args, null, 2))} language="json" />
      )}
      {typeof error === "string" && <p className="failure">{escapeInvisible(error)}</p>}
      {output !== null && output !== undefined && <Code text={escapeInvisible(formatResult(output))} language={typeof output === "string" ? "" : "json"} />}
    </div>
  );
}
