import { expect, test } from "vitest";

import type { Session } from "../api/types";
import { SESSION_STATUSES, sessionStatus, statusLabel } from "./session_status";

const WAIT = { reason: "client", text: "" } as Session["waiting"];

test("every status of a session can be chosen as a filter", () => {
  const session = (fields: Partial<Session>) => ({ status: "completed", state: "idle", last_stop: "stop", waiting: null, ...fields }) as Session;
  const found = [
    sessionStatus(session({ status: "running" }), false),
    sessionStatus(session({ status: "running" }), true),
    sessionStatus(session({ status: "running", waiting: WAIT }), false),
    sessionStatus(session({}), false),
    sessionStatus(session({ last_stop: "aborted" }), false),
    sessionStatus(session({ status: "failed" }), false),
    sessionStatus(session({ status: "pending", state: "pending" }), false),
    sessionStatus(session({ state: "completed" }), false),
    sessionStatus(session({ state: "cancelled" }), false),
  ];
  expect(found).toEqual(SESSION_STATUSES);
  expect(SESSION_STATUSES.map(statusLabel)).toContain("needs approval");
});
