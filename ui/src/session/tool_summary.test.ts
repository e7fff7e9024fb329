import { expect, test } from "vitest";

import { fileChanges, formatResult, splitQuestion, summarizeCall } from "./tool_summary";

test("a call is summarized by its most informative argument", () => {
  expect(summarizeCall({ command: "git", args: ["status", "-s"] })).toBe("git status -s");
  expect(summarizeCall({ path: "a.txt", content: "x" })).toBe("a.txt");
  expect(summarizeCall({ depth: 2 })).toBe('{"depth":2}');
  expect(summarizeCall({})).toBe("");
  expect(summarizeCall({ query: "a\n  b" })).toBe("a b");
});

test("changes come from the arguments of built-in tools and from the results of others", () => {
  const edit = fileChanges("edit_file", { path: "a", old: "x", new: "y" }, null);
  expect(edit.map((each) => [each.path, each.lines.map((line) => line.kind)])).toEqual([["a", ["removed", "added"]]]);
  const reported = fileChanges("edit", {}, { output: null, diffs: [{ path: "b", old_text: null, new_text: "1\n2" }] });
  expect(reported.map((each) => [each.path, each.lines.length])).toEqual([["b", 2]]);
  expect(fileChanges("read_file", { path: "a" }, "x")).toEqual([]);
});

test("a result is formatted as text or as JSON", () => {
  expect(formatResult("plain")).toBe("plain");
  expect(formatResult({ stdout: "out", stderr: "err" })).toBe("out\nerr");
  expect(formatResult({ stdout: "out", exit_code: 1 })).toBe('{\n  "stdout": "out",\n  "exit_code": 1\n}');
  expect(formatResult(undefined)).toBe("");
});

test("a question about a file is split into its first line and the whole diff", () => {
  expect(splitQuestion("/w/a (new file)\n+x\n+y")).toEqual({
    head: "/w/a (new file)",
    lines: [
      { kind: "added", text: "x" },
      { kind: "added", text: "y" },
    ],
  });
  expect(splitQuestion("run: ls\n-la")).toEqual({ head: "run: ls\n-la", lines: null });
});
