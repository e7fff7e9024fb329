import { expect, test } from "vitest";

import { escapeInvisible } from "./invisible";

test("bidirectional controls and invisible characters are escaped in place", () => {
  expect(escapeInvisible("a\u202eb\u0000c\u200bd\u001b[31m\ufeff")).toBe("a⟨202E⟩b␀c⟨200B⟩d␛[31m⟨FEFF⟩");
});

test("plain text, tabs, line feeds and joined emoji are unchanged", () => {
  const plain = "a\tb\nc — é 👩‍👩‍👧 العربية";
  expect(escapeInvisible(plain)).toBe(plain);
});

test("a CRLF line ending becomes a line feed", () => {
  expect(escapeInvisible("a\r\nb\rc")).toBe("a\nb␍c");
});
