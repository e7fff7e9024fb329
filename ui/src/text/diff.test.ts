import { expect, test } from "vitest";

import { diffLines, isDiff, parseDiff } from "./diff";

const render = (lines: ReturnType<typeof diffLines>) =>
  lines.map((line) => `${{ added: "+", removed: "-", same: " ", hunk: "@" }[line.kind]}${line.text}`);

test("a unified diff is recognised and parsed line by line", () => {
  const text = "@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n";
  expect(isDiff(text)).toBe(true);
  expect(isDiff("a - b\n+ c")).toBe(false);
  expect(render(parseDiff(text))).toEqual(["@@@ -1,2 +1,2 @@", " a", "-b", "+c", "@\\ No newline at end of file"]);
});

test("changed lines are returned with lines of context", () => {
  const old = ["1", "2", "3", "4", "5", "6", "7", "8"].join("\n");
  const now = ["1", "2", "3", "4", "five", "6", "7", "8"].join("\n");
  expect(render(diffLines(old, now, 1))).toEqual([" 4", "-5", "+five", " 6"]);
});

test("a new text is all added, an equal text has no diff", () => {
  expect(render(diffLines("", "a\nb"))).toEqual(["+a", "+b"]);
  expect(diffLines("a", "a")).toEqual([]);
});

test("the old and the new text can be rebuilt from the diff", () => {
  const old = "a\nb\nc\nd\ne\nf".split("\n");
  const now = "a\nx\nc\ne\ny\nf".split("\n");
  const lines = diffLines(old.join("\n"), now.join("\n"), 99);
  expect(lines.filter((line) => line.kind !== "added").map((line) => line.text)).toEqual(old);
  expect(lines.filter((line) => line.kind !== "removed").map((line) => line.text)).toEqual(now);
});
