import { expect, test } from "vitest";

import type { Message } from "../api/types";
import type { Draft } from "./conversation";
import { buildRows } from "./rows";

function message(sequence: number, role: Message["role"], turn: number): Message {
  return { id: `m${sequence}`, sequence, role, turn, content: { text: "x" }, tool_call_id: null } as unknown as Message;
}

test("an answer follows its message, and a message without a turn keeps its place", () => {
  const text = { text: "…", length: 1 };
  const draft: Draft = { id: "d", turn: 1, model: null, text: text, reasoning: { text: "", length: 0 }, isStored: false };
  const messages = [
    message(1, "system", 0),
    message(2, "user", 1),
    message(3, "user", 2),
    message(4, "assistant", 1),
    message(5, "system", 0),
    message(6, "user", 3),
  ];
  expect(buildRows(messages, [draft]).map((row) => row.key)).toEqual(["m1", "m2", "m4", "m5", "d", "m3", "m6"]);
});
