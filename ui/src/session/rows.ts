/** The rows of a transcript; a call and its result are one row. */
import type { Message } from "../api/types";
import type { Draft } from "./conversation";

export type Row =
  | { readonly kind: "message"; readonly key: string; readonly message: Message }
  | { readonly kind: "call"; readonly key: string; readonly message: Message; readonly result: Message | null }
  | { readonly kind: "draft"; readonly key: string; readonly draft: Draft };

export function buildRows(messages: readonly Message[], drafts: readonly Draft[]): Row[] {
  const results = new Map(messages.flatMap((each) => (each.tool_call_id === null ? [] : [[each.tool_call_id, each]])));
  const calls = new Set(messages.flatMap((each) => (each.role === "tool_call" ? [callId(each)] : [])));
  const rows = messages.flatMap((message): Row[] => {
    if (message.role === "tool_call") {
      return [{ kind: "call", key: message.id, message, result: results.get(callId(message)) ?? null }];
    }
    if (message.tool_call_id !== null && calls.has(message.tool_call_id)) return [];
    return isEmpty(message) ? [] : [{ kind: "message", key: message.id, message }];
  });
  const known = new Set(messages.map((each) => each.id));
  const streaming = drafts.filter((each) => !known.has(each.id) && (each.text.text || each.reasoning.text));
  return sortByTurn([...rows, ...streaming.map((draft): Row => ({ kind: "draft", key: draft.id, draft }))]);
}

/** Sort by turn: an answer follows its message, even if other messages were queued before it. */
function sortByTurn(rows: Row[]): Row[] {
  const turnOf = (row: Row) => (row.kind === "draft" ? row.draft.turn : row.message.turn);
  // A message without a turn keeps its place.
  let last = 0;
  const keyed = rows.map((row) => ({ row, turn: (last = turnOf(row) || last) }));
  return keyed.sort((a, b) => a.turn - b.turn).map(({ row }) => row);
}

export function callId(message: Message): string {
  const id = message.content["id"];
  return typeof id === "string" ? id : message.id;
}

/** Whether the model only called a tool, without any text. */
function isEmpty(message: Message): boolean {
  return message.role === "assistant" && message.content["text"] === "" && message.parts === undefined;
}
