import { expect, test } from "vitest";

import { visible } from "./visible";

test("what turns or hides text is written out, and the text stays in its order", () => {
  expect(visible("a\u202eb\u0000c\u200bd\u001b[31m\ufeff")).toBe("a⟨202E⟩b␀c⟨200B⟩d␛[31m⟨FEFF⟩");
});

test("plain text, tabs, lines and joined emoji stay as they are", () => {
  const plain = "a\tb\nc — é 👩‍👩‍👧 العربية";
  expect(visible(plain)).toBe(plain);
});

test("a line that ends as on Windows is a line", () => {
  expect(visible("a\r\nb\rc")).toBe("a\nb␍c");
});
