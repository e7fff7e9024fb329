/** One row: who speaks, what they say, and what can be done from here. */
import { memo } from "react";

import { newId, server, told } from "../api/client";
import type { Approval, Message, Part } from "../api/forms";
import { queries } from "../api/queries";
import { go } from "../app/router";
import { CopyButton } from "../text/CopyButton";
import { clock, wholeTime } from "../text/format";
import { Markdown } from "../text/markdown";
import { visible } from "../text/visible";
import type { Draft } from "./conversation";
import { planOf } from "./event_data";
import { PlanView } from "./PlanView";
import type { Row } from "./rows";
import { ToolCard } from "./ToolCard";

interface Props {
  readonly row: Row;
  readonly sessionId: string;
  readonly isMarked: boolean;
  readonly question: Approval | null;
  readonly isStarted: boolean;
  readonly isQueued: boolean;
  readonly onTrouble: (error: unknown) => void;
}

export const RowView = memo(
  function RowView({ row, sessionId, isMarked, question, isStarted, isQueued, onTrouble }: Props) {
    const isDraft = row.kind === "draft";
    const name = isDraft ? "is being said" : `${row.message.role} ${row.message.sequence}`;
    const classes = isDraft ? "row assistant speaking" : `row ${row.message.role}${isMarked ? " marked" : ""}`;
    return (
      <section className={classes} aria-label={name} data-key={row.key}>
        {isDraft ? <Dots /> : <Gutter message={row.message} sessionId={sessionId} onTrouble={onTrouble} />}
        <div className="said">
          {row.kind === "call" ? (
            <ToolCard call={row.message} result={row.result} question={question} isStarted={isStarted} />
          ) : (
            <Said said={isDraft ? saidSoFar(row.draft) : saidIn(row.message)} sessionId={sessionId} />
          )}
          {isQueued && <p className="queued">queued</p>}
        </div>
      </section>
    );
  },
  (before, after) =>
    sameRow(before.row, after.row) &&
    before.isMarked === after.isMarked &&
    before.question === after.question &&
    before.isStarted === after.isStarted &&
    before.isQueued === after.isQueued &&
    before.onTrouble === after.onTrouble,
);

function sameRow(a: Row, b: Row): boolean {
  if (a.kind === "draft" || b.kind === "draft") return a.kind === "draft" && b.kind === "draft" && a.draft === b.draft;
  const [result, other] = [a.kind === "call" ? a.result : null, b.kind === "call" ? b.result : null];
  return a.message === b.message && result === other;
}

interface GutterProps {
  readonly message: Message;
  readonly sessionId: string;
  readonly onTrouble: (error: unknown) => void;
}

function Gutter({ message, sessionId, onTrouble }: GutterProps) {
  const link = `/sessions/${sessionId}?at=${message.sequence}`;
  const text = message.content["text"];
  return (
    <div className="gutter">
      <a className="number" href={link} title={`${wholeTime(message.created_at)} — link to this message`}>
        {message.sequence}
      </a>
      <time dateTime={message.created_at}>{clock(message.created_at)}</time>
      <span className="acts">
        <button type="button" className="quiet small" onClick={() => void fork(sessionId, message.sequence).catch(onTrouble)}>
          Fork<span className="unseen"> from message {message.sequence}</span>
        </button>
        {typeof text === "string" && text !== "" && <CopyButton text={text} />}
      </span>
    </div>
  );
}

async function fork(sessionId: string, at: number): Promise<void> {
  const made = await told(
    server.POST("/v1/sessions/{session_id}/fork", {
      params: { path: { session_id: sessionId } },
      body: { id: newId(), at },
    }),
  );
  void queries.invalidateQueries({ queryKey: ["sessions"] });
  go(`/sessions/${made.id}`, { toWrite: true });
}

/** What a row says; a draft and the message it becomes are drawn by the same hand, without a jump. */
interface Saying {
  readonly parts: readonly Part[];
  readonly role: Message["role"];
  readonly isGrowing: boolean;
  readonly isCut: boolean;
  readonly loose: string | null;
}

function saidIn(message: Message): Saying {
  const text = String(message.content["text"] ?? "");
  return {
    parts: message.parts ?? (text === "" ? [] : [{ type: "text", text }]),
    role: message.role,
    isGrowing: false,
    isCut: message.interrupted ?? false,
    loose: message.role === "tool_result" ? JSON.stringify(message.content, null, 2) : null,
  };
}

function saidSoFar({ reasoning, text }: Draft): Saying {
  const parts: Part[] = [
    ...(reasoning.text ? [{ type: "reasoning" as const, text: reasoning.text }] : []),
    ...(text.text ? [{ type: "text" as const, text: text.text }] : []),
  ];
  return { parts, role: "assistant", isGrowing: true, isCut: false, loose: null };
}

function Said({ said, sessionId }: { said: Saying; sessionId: string }) {
  return (
    <>
      {said.loose && <pre className="plain">{visible(said.loose)}</pre>}
      {said.parts.map((part, at) => (
        <PartView key={`${part.type} ${at}`} part={part} said={said} sessionId={sessionId} />
      ))}
      {said.isCut && <p className="cut">was stopped here</p>}
    </>
  );
}

function PartView({ part, said, sessionId }: { part: Part; said: Saying; sessionId: string }) {
  switch (part.type) {
    case "text":
      // Only a model writes markdown; what people and programs say is shown as they said it.
      if (said.role !== "assistant") return <p className="words">{visible(part.text)}</p>;
      return <Markdown text={part.text} isGrowing={said.isGrowing} />;
    case "reasoning":
      return <Thoughts text={part.text} isGrowing={said.isGrowing && part === said.parts.at(-1)} />;
    case "notice":
      return <NoticeView part={part} />;
    case "compaction":
      return (
        <details className="fold">
          <summary>Summed up what came before message {part.dropped_through + 1}</summary>
          <Markdown text={part.summary} />
        </details>
      );
    case "plan":
      return <PlanView steps={planOf(part.steps)} />;
    case "media":
      return <Picture part={part} sessionId={sessionId} />;
    default:
      return null;
  }
}

const FAILURES = new Set<string>(["error", "agent_failed"]);

function NoticeView({ part }: { part: Extract<Part, { type: "notice" }> }) {
  // Somebody wanted it so: nothing failed.
  if (part.code === "aborted") return <p className="notice">Stopped.</p>;
  if (FAILURES.has(part.code)) return <p className="failure">{visible(part.text)}</p>;
  return (
    <p className="notice">
      {visible(part.text)} <code>{part.code}</code>
    </p>
  );
}

function Thoughts({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  return (
    <details className="fold thoughts">
      <summary>{isGrowing ? "Thinking …" : "Thoughts"}</summary>
      <Markdown text={text} isGrowing={isGrowing} />
    </details>
  );
}

function Picture({ part, sessionId }: { part: Extract<Part, { type: "media" }>; sessionId: string }) {
  const hash = /^media:\/\/(sha256-[0-9a-f]{64})$/.exec(part.ref)?.[1];
  const name = visible(part.name ?? part.mime_type);
  if (hash === undefined) return <p className="notice">{name}</p>;
  // By its handle, from our own server: nothing a model writes becomes an address.
  const address = `/v1/sessions/${sessionId}/media/${hash}`;
  if (!part.mime_type.startsWith("image/")) {
    return (
      <a className="button" href={address} download>
        {name}
      </a>
    );
  }
  return <img className="picture" src={address} alt={name} loading="lazy" />;
}

function Dots() {
  return (
    <div className="gutter">
      <span className="number" aria-hidden="true">
        …
      </span>
    </div>
  );
}
