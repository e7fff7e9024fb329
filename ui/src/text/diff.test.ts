import { expect, test } from "vitest";

import { difference, isDiff, readDiff } from "./diff";

const marked = (lines: ReturnType<typeof difference>) =>
  lines.map((line) => `${{ added: "+", removed: "-", same: " ", place: "@" }[line.mark]}${line.text}`);

test("a unified diff is known and read line by line", () => {
  const text = "@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n";
  expect(isDiff(text)).toBe(true);
  expect(isDiff("a - b\n+ c")).toBe(false);
  expect(marked(readDiff(text))).toEqual(["@@@ -1,2 +1,2 @@", " a", "-b", "+c", "@\\ No newline at end of file"]);
});

test("what differs is shown with a little around it", () => {
  const old = ["1", "2", "3", "4", "5", "6", "7", "8"].join("\n");
  const now = ["1", "2", "3", "4", "five", "6", "7", "8"].join("\n");
  expect(marked(difference(old, now, 1))).toEqual([" 4", "-5", "+five", " 6"]);
});

test("a new text is all added, an equal one is nothing", () => {
  expect(marked(difference("", "a\nb"))).toEqual(["+a", "+b"]);
  expect(difference("a", "a")).toEqual([]);
});

test("old and new can be put together again from the lines between them", () => {
  const old = "a\nb\nc\nd\ne\nf".split("\n");
  const now = "a\nx\nc\ne\ny\nf".split("\n");
  const lines = difference(old.join("\n"), now.join("\n"), 99);
  expect(lines.filter((line) => line.mark !== "added").map((line) => line.text)).toEqual(old);
  expect(lines.filter((line) => line.mark !== "removed").map((line) => line.text)).toEqual(now);
});
