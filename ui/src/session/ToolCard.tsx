/** A call of a tool: what it was asked for, how it came out, what it changed. */
import { useState } from "react";

import type { Approval, Message } from "../api/forms";
import { Code } from "../text/Code";
import { Diff } from "../text/Diff";
import { lasted } from "../text/format";
import { visible } from "../text/visible";
import { asFields } from "./event_data";
import { Question } from "./Question";
import { changesOf, resultText, summaryOf } from "./tool_words";

interface Props {
  readonly call: Message;
  readonly result: Message | null;
  readonly question: Approval | null;
  readonly isStarted: boolean;
}

export function ToolCard({ call, result, question, isStarted }: Props) {
  const name = String(call.content["name"]);
  const given = asFields(call.content["arguments"]) ?? {};
  const status = question ? "asking" : result ? (result.result_status ?? "ok") : isStarted ? "running" : "planned";
  const changes = changesOf(name, given, result?.content["result"]);
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <details className={`tool ${status}`} open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          <span className="tool-name">{visible(name)}</span>
          <span className="tool-about">{visible(summaryOf(given))}</span>
          {isDone(status) && <Sum changes={changes} />}
          {result && <span className="tool-time">{lasted(call.created_at, result.created_at)}</span>}
          <span className="tool-status">{WORDS[status] ?? status}</span>
        </summary>
        {isOpen && <Inside given={given} result={result} changes={changes} />}
      </details>
      {question && <Question approval={question} />}
    </>
  );
}

/** What was not done has changed nothing. */
function isDone(status: string): boolean {
  return status === "ok" || status === "asking" || status === "running" || status === "planned";
}

const WORDS: Readonly<Record<string, string>> = {
  asking: "waits for you",
  error: "failed",
  planned: "planned",
  running: "runs",
  unknown: "outcome unknown",
};

function Sum({ changes }: { changes: ReturnType<typeof changesOf> }) {
  const lines = changes.flatMap((each) => each.lines);
  if (lines.length === 0) return null;
  const number = (mark: string) => lines.filter((line) => line.mark === mark).length;
  return (
    <span className="diff-sum">
      <b className="added">+{number("added")}</b> <b className="removed">−{number("removed")}</b>
    </span>
  );
}

interface InsideProps {
  readonly given: Readonly<Record<string, unknown>>;
  readonly result: Message | null;
  readonly changes: ReturnType<typeof changesOf>;
}

function Inside({ given, result, changes }: InsideProps) {
  const error = result?.content["error"];
  const output = result?.content["result"];
  return (
    <div className="tool-inside">
      {changes.length > 0 ? (
        changes.map((change, at) => <Diff key={at} name={visible(change.path)} lines={change.lines} />)
      ) : (
        <Code text={visible(JSON.stringify(given, null, 2))} language="json" />
      )}
      {typeof error === "string" && <p className="failure">{visible(error)}</p>}
      {output !== null && output !== undefined && <Code text={visible(resultText(output))} language={typeof output === "string" ? "" : "json"} />}
    </div>
  );
}
