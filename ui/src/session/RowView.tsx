/** One row: its author, its content and its actions. */
import { memo } from "react";

import { newId, server, unwrap } from "../api/client";
import { queryClient } from "../api/queries";
import type { Approval, Message, Part } from "../api/types";
import { navigate } from "../app/router";
import { CopyButton } from "../text/CopyButton";
import { formatDateTime, formatTime } from "../text/format";
import { escapeInvisible } from "../text/invisible";
import { Markdown } from "../text/markdown";
import type { Draft } from "./conversation";
import { parsePlan } from "./event_data";
import { PlanView } from "./PlanView";
import type { Row } from "./rows";
import { StepCard, ToolCard } from "./ToolCard";

interface Props {
  readonly row: Row;
  readonly sessionId: string;
  readonly isMarked: boolean;
  readonly approval: Approval | null;
  readonly isStarted: boolean;
  readonly isQueued: boolean;
  readonly onError: (error: unknown) => void;
}

export const RowView = memo(
  function RowView({ row, sessionId, isMarked, approval, isStarted, isQueued, onError }: Props) {
    const isDraft = row.kind === "draft";
    const name = isDraft ? "assistant, streaming" : `${row.message.role} ${row.message.sequence}`;
    const classes = isDraft ? "row assistant streaming" : `row ${row.message.role}${isMarked ? " marked" : ""}`;
    return (
      <section className={classes} aria-label={name} data-key={row.key}>
        {isDraft ? <DraftGutter /> : <Gutter message={row.message} sessionId={sessionId} onError={onError} />}
        <div className="row-content">
          {row.kind === "call" ? (
            <ToolCard call={row.message} result={row.result} approval={approval} isStarted={isStarted} />
          ) : (
            <ContentView content={isDraft ? draftContent(row.draft) : messageContent(row.message)} sessionId={sessionId} />
          )}
          {isQueued && <p className="queued">queued</p>}
        </div>
      </section>
    );
  },
  (before, after) =>
    isSameRow(before.row, after.row) &&
    before.isMarked === after.isMarked &&
    before.approval === after.approval &&
    before.isStarted === after.isStarted &&
    before.isQueued === after.isQueued &&
    before.onError === after.onError,
);

function isSameRow(a: Row, b: Row): boolean {
  if (a.kind === "draft" || b.kind === "draft") return a.kind === "draft" && b.kind === "draft" && a.draft === b.draft;
  const [result, other] = [a.kind === "call" ? a.result : null, b.kind === "call" ? b.result : null];
  return a.message === b.message && result === other;
}

interface GutterProps {
  readonly message: Message;
  readonly sessionId: string;
  readonly onError: (error: unknown) => void;
}

function Gutter({ message, sessionId, onError }: GutterProps) {
  const link = `/sessions/${sessionId}?at=${message.sequence}`;
  const text = message.content["text"];
  return (
    <div className="gutter">
      <a className="number" href={link} title={`${formatDateTime(message.created_at)} — link to this message`}>
        {message.sequence}
      </a>
      <time dateTime={message.created_at}>{formatTime(message.created_at)}</time>
      <span className="actions">
        <button type="button" className="quiet small" onClick={() => void fork(sessionId, message.sequence).catch(onError)}>
          Fork<span className="visually-hidden"> from message {message.sequence}</span>
        </button>
        {typeof text === "string" && text !== "" && <CopyButton text={text} />}
      </span>
    </div>
  );
}

async function fork(sessionId: string, at: number): Promise<void> {
  const created = await unwrap(
    server.POST("/v1/sessions/{session_id}/fork", {
      params: { path: { session_id: sessionId } },
      body: { id: newId(), at },
    }),
  );
  void queryClient.invalidateQueries({ queryKey: ["sessions"] });
  navigate(`/sessions/${created.id}`, { focusComposer: true });
}

/** The content of a row; a draft and its final message share a component, so that nothing jumps. */
interface RowContent {
  readonly parts: readonly Part[];
  readonly role: Message["role"];
  readonly isStreaming: boolean;
  readonly isInterrupted: boolean;
  readonly raw: string | null;
}

function messageContent(message: Message): RowContent {
  const text = String(message.content["text"] ?? "");
  return {
    parts: message.parts ?? (text === "" ? [] : [{ type: "text", text }]),
    role: message.role,
    isStreaming: false,
    isInterrupted: message.interrupted ?? false,
    raw: message.role === "tool_result" ? JSON.stringify(message.content, null, 2) : null,
  };
}

function draftContent({ reasoning, text }: Draft): RowContent {
  const parts: Part[] = [
    ...(reasoning.text ? [{ type: "reasoning" as const, text: reasoning.text }] : []),
    ...(text.text ? [{ type: "text" as const, text: text.text }] : []),
  ];
  return { parts, role: "assistant", isStreaming: true, isInterrupted: false, raw: null };
}

function ContentView({ content, sessionId }: { content: RowContent; sessionId: string }) {
  return (
    <>
      {content.raw && <pre className="plain">{escapeInvisible(content.raw)}</pre>}
      {content.parts.map((part, index) => (
        <PartView key={`${part.type} ${index}`} part={part} content={content} sessionId={sessionId} />
      ))}
      {content.isInterrupted && <p className="interrupted">stopped here</p>}
    </>
  );
}

function PartView({ part, content, sessionId }: { part: Part; content: RowContent; sessionId: string }) {
  switch (part.type) {
    case "text":
      // Only models write Markdown; other text is shown unchanged.
      if (content.role !== "assistant") return <p className="plain-text">{escapeInvisible(part.text)}</p>;
      return <Markdown text={part.text} isStreaming={content.isStreaming} />;
    case "reasoning":
      return <Thoughts text={part.text} isStreaming={content.isStreaming && part === content.parts.at(-1)} />;
    case "notice":
      return <NoticeView part={part} />;
    case "compaction":
      return (
        <details className="collapsible">
          <summary>Summary of the messages before {part.dropped_through + 1}</summary>
          <Markdown text={part.summary} />
        </details>
      );
    case "withdrawn":
      return (
        <p className="notice">
          {part.message_ids.length} messages were withdrawn from the history <code>{part.reason}</code>
        </p>
      );
    case "plan":
      return <PlanView steps={parsePlan(part.steps)} />;
    case "step":
      return <StepCard step={part} />;
    case "media":
      return <MediaView part={part} sessionId={sessionId} />;
    default:
      return null;
  }
}

const FAILURES = new Set<string>(["error", "agent_failed"]);

function NoticeView({ part }: { part: Extract<Part, { type: "notice" }> }) {
  // The user stopped the turn: this is no failure.
  if (part.code === "aborted") return <p className="notice">Stopped.</p>;
  if (FAILURES.has(part.code)) return <p className="failure">{escapeInvisible(part.text)}</p>;
  return (
    <p className="notice">
      {escapeInvisible(part.text)} <code>{part.code}</code>
    </p>
  );
}

function Thoughts({ text, isStreaming }: { text: string; isStreaming: boolean }) {
  return (
    <details className="collapsible thoughts">
      <summary>{isStreaming ? "Thinking …" : "Thoughts"}</summary>
      <Markdown text={text} isStreaming={isStreaming} />
    </details>
  );
}

function MediaView({ part, sessionId }: { part: Extract<Part, { type: "media" }>; sessionId: string }) {
  const hash = /^media:\/\/(sha256-[0-9a-f]{64})$/.exec(part.ref)?.[1];
  const name = escapeInvisible(part.name ?? part.mime_type);
  if (hash === undefined) return <p className="notice">{name}</p>;
  // Media are loaded from this server by hash: a URL that a model writes would allow data exfiltration.
  const url = `/v1/sessions/${sessionId}/media/${hash}`;
  if (!part.mime_type.startsWith("image/")) {
    return (
      <a className="button" href={url} download>
        {name}
      </a>
    );
  }
  return <img className="image" src={url} alt={name} loading="lazy" />;
}

function DraftGutter() {
  return (
    <div className="gutter">
      <span className="number" aria-hidden="true">
        …
      </span>
    </div>
  );
}
