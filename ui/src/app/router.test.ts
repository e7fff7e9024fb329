import { expect, test } from "vitest";

import { placeOf } from "./router";

test("an address names a section, perhaps a thing in it, and what to look at", () => {
  expect(placeOf("/", "")).toMatchObject({ section: "sessions", id: null });
  expect(placeOf("/sessions/0192", "?at=7")).toMatchObject({ section: "sessions", id: "0192" });
  expect(placeOf("/sessions/0192", "?at=7").query.get("at")).toBe("7");
  expect(placeOf("/agents/code-assistant", "")).toMatchObject({ section: "agents", id: "code-assistant" });
  expect(placeOf("/timeline", "")).toMatchObject({ section: "timeline", id: null });
  expect(placeOf("/elsewhere", "")).toMatchObject({ section: "sessions", id: null });
});
