import { expect, test } from "vitest";

import { changesOf, questionOf, resultText, summaryOf } from "./tool_words";

test("a call is told by what says most about it", () => {
  expect(summaryOf({ command: "git", args: ["status", "-s"] })).toBe("git status -s");
  expect(summaryOf({ path: "a.txt", content: "x" })).toBe("a.txt");
  expect(summaryOf({ depth: 2 })).toBe('{"depth":2}');
  expect(summaryOf({})).toBe("");
  expect(summaryOf({ query: "a\n  b" })).toBe("a b");
});

test("changes come from the arguments of our tools and from the results of others", () => {
  const edit = changesOf("edit_file", { path: "a", old: "x", new: "y" }, null);
  expect(edit.map((each) => [each.path, each.lines.map((line) => line.mark)])).toEqual([["a", ["removed", "added"]]]);
  const told = changesOf("edit", {}, { output: null, diffs: [{ path: "b", old_text: null, new_text: "1\n2" }] });
  expect(told.map((each) => [each.path, each.lines.length])).toEqual([["b", 2]]);
  expect(changesOf("read_file", { path: "a" }, "x")).toEqual([]);
});

test("a result is read as its words, or whole", () => {
  expect(resultText("plain")).toBe("plain");
  expect(resultText({ stdout: "out", stderr: "err" })).toBe("out\nerr");
  expect(resultText({ stdout: "out", exit_code: 1 })).toBe('{\n  "stdout": "out",\n  "exit_code": 1\n}');
  expect(resultText(undefined)).toBe("");
});

test("a question about a file is its head and every line of the change", () => {
  expect(questionOf("/w/a (new file)\n+x\n+y")).toEqual({
    head: "/w/a (new file)",
    lines: [
      { mark: "added", text: "x" },
      { mark: "added", text: "y" },
    ],
  });
  expect(questionOf("run: ls\n-la")).toEqual({ head: "run: ls\n-la", lines: null });
});
