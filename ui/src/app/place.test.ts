import { expect, test } from "vitest";

import { messageOf, placeOf } from "./place";

test("an address names a section, perhaps a thing in it, and what to look at", () => {
  expect(placeOf("/", "")).toMatchObject({ section: "sessions", id: null });
  expect(placeOf("/sessions/0192", "?at=7")).toMatchObject({ section: "sessions", id: "0192" });
  expect(placeOf("/sessions/0192", "?at=7").query.get("at")).toBe("7");
  expect(placeOf("/agents/code-assistant", "")).toMatchObject({ section: "agents", id: "code-assistant" });
  expect(placeOf("/timeline", "")).toMatchObject({ section: "timeline", id: null });
  expect(placeOf("/elsewhere", "")).toMatchObject({ section: "sessions", id: null });
  expect(placeOf("/sessions/%E0%", "")).toMatchObject({ section: "sessions", id: "%E0%" });
});

test("only a number names a message", () => {
  const found = ["?at=7", "?at=0", "?at=-1", "?at=x", "?at=1.5", ""].map((search) => messageOf(placeOf("/sessions/0192", search)));
  expect(found).toEqual([7, null, null, null, null, null]);
});
