import { expect, test } from "vitest";

import { parseMessageNumber, parseRoute } from "./route";

test("a URL is parsed into a section, an optional id and a query", () => {
  expect(parseRoute("/", "")).toMatchObject({ section: "sessions", id: null });
  expect(parseRoute("/sessions/0192", "?at=7")).toMatchObject({ section: "sessions", id: "0192" });
  expect(parseRoute("/sessions/0192", "?at=7").query.get("at")).toBe("7");
  expect(parseRoute("/agents/code-assistant", "")).toMatchObject({ section: "agents", id: "code-assistant" });
  expect(parseRoute("/timeline", "")).toMatchObject({ section: "timeline", id: null });
  expect(parseRoute("/elsewhere", "")).toMatchObject({ section: "sessions", id: null });
  expect(parseRoute("/sessions/%E0%", "")).toMatchObject({ section: "sessions", id: "%E0%" });
});

test("only a positive integer is a message number", () => {
  const found = ["?at=7", "?at=0", "?at=-1", "?at=x", "?at=1.5", ""].map((search) => parseMessageNumber(parseRoute("/sessions/0192", search)));
  expect(found).toEqual([7, null, null, null, null, null]);
});
