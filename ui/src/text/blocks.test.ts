import { expect, test } from "vitest";

import { splitBlocks } from "./blocks";

const TEXT = "One.\ntwo\n\nThree\n\n- a\n\n- b\n\n  still b\n\n```py\nx\n\ny\n```\n\n~~~\n```\n\nz\n~~~\n\nEnd\n";

test("blocks are paragraphs, whole lists and whole fences", () => {
  expect(splitBlocks(TEXT)).toEqual([
    "One.\ntwo\n\n",
    "Three\n\n- a\n\n- b\n\n  still b\n\n",
    "```py\nx\n\ny\n```\n\n",
    "~~~\n```\n\nz\n~~~\n\n",
    "End\n",
  ]);
});

test("the joined blocks equal every prefix of the text, and only the last block changes", () => {
  let before: string[] = [];
  for (let end = 0; end <= TEXT.length; end += 1) {
    const now = splitBlocks(TEXT.slice(0, end));
    expect(now.join("")).toBe(TEXT.slice(0, end));
    expect(now.slice(0, before.length - 1)).toEqual(before.slice(0, -1));
    before = now;
  }
});
