import { expect, test } from "vitest";

import type { Session } from "../api/forms";
import { standingOf, STANDINGS, worded } from "./standing";

test("a session stands in one of the words that can be chosen", () => {
  const session = (fields: Partial<Session>) => ({ status: "completed", state: "idle", last_stop: "stop", ...fields }) as Session;
  const found = [
    standingOf(session({ status: "running" }), false),
    standingOf(session({ status: "running" }), true),
    standingOf(session({}), false),
    standingOf(session({ last_stop: "aborted" }), false),
    standingOf(session({ status: "failed" }), false),
    standingOf(session({ status: "pending", state: "pending" }), false),
    standingOf(session({ state: "completed" }), false),
    standingOf(session({ state: "cancelled" }), false),
  ];
  expect(found).toEqual(STANDINGS);
  expect(STANDINGS.map(worded)).toContain("waits for you");
});
