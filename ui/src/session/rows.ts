/** What stands below one another: a call and its result are one row. */
import type { Message } from "../api/forms";
import type { Draft } from "./conversation";

export type Row =
  | { readonly kind: "message"; readonly key: string; readonly message: Message }
  | { readonly kind: "call"; readonly key: string; readonly message: Message; readonly result: Message | null }
  | { readonly kind: "draft"; readonly key: string; readonly draft: Draft };

export function rowsOf(messages: readonly Message[], drafts: readonly Draft[]): Row[] {
  const results = new Map(messages.flatMap((each) => (each.tool_call_id === null ? [] : [[each.tool_call_id, each]])));
  const called = new Set(messages.flatMap((each) => (each.role === "tool_call" ? [callId(each)] : [])));
  const rows = messages.flatMap((message): Row[] => {
    if (message.role === "tool_call") {
      return [{ kind: "call", key: message.id, message, result: results.get(callId(message)) ?? null }];
    }
    if (message.tool_call_id !== null && called.has(message.tool_call_id)) return [];
    return isEmpty(message) ? [] : [{ kind: "message", key: message.id, message }];
  });
  const known = new Set(messages.map((each) => each.id));
  const speaking = drafts.filter((each) => !known.has(each.id) && (each.text.text || each.reasoning.text));
  return byTurn([...rows, ...speaking.map((draft): Row => ({ kind: "draft", key: draft.id, draft }))]);
}

/** An answer stands under what it answers, also where more was said before it came. */
function byTurn(rows: Row[]): Row[] {
  const turnOf = (row: Row) => (row.kind === "draft" ? row.draft.turn : row.message.turn);
  // What belongs to no turn stays where it was said.
  let last = 0;
  const placed = rows.map((row) => ({ row, turn: (last = turnOf(row) || last) }));
  return placed.sort((a, b) => a.turn - b.turn).map(({ row }) => row);
}

export function callId(message: Message): string {
  const id = message.content["id"];
  return typeof id === "string" ? id : message.id;
}

/** A model that only called a tool has said nothing. */
function isEmpty(message: Message): boolean {
  return message.role === "assistant" && message.content["text"] === "" && message.parts === undefined;
}
