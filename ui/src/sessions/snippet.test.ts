import { expect, test } from "vitest";

import { splitSnippet } from "./snippet";

/** Render a snippet with its matches between bars. */
const render = (snippet: string, query: string) =>
  splitSnippet(snippet, query)
    .map(({ text, isMatch }) => (isMatch ? `|${text}|` : text))
    .join("");

test("matches are found regardless of case and accents", () => {
  expect(render("The [tide] is [high].", "HIGH tide")).toBe("The |tide| is |high|.");
  expect(render("Low is the [high tide].", '"high tide"')).toBe("Low is the |high tide|.");
  expect(render("Ein [Résumé]", "resum*")).toBe("Ein |Résumé|");
  expect(render("私は[東京]に住む", "東京")).toBe("私は|東京|に住む");
  expect(render("moved_[lighthouse]", "lighthouse -far")).toBe("moved_|lighthouse|");
});

test("brackets of the text are kept", () => {
  expect(render("for [row] in rows[1:]: rows[0]", "row")).toBe("for |row| in rows[1:]: rows[0]");
  expect(render("[items][[row]] [x]", "items row")).toBe("|items|[|row|] [x]");
  expect(render("a [link](to) [[tide]]", "tide")).toBe("a [link](to) [|tide|]");
  expect(render("[[1], [a [tide]], []] [", "tide")).toBe("[[1], [a |tide|], []] [");
  expect(render("say [a [b]] twice", '"a b"')).toBe("say |a [b|] twice");
});

test("a text without matches is unchanged", () => {
  expect(render("- [ ] open, ] closed [x", "low")).toBe("- [ ] open, ] closed [x");
  expect(render("", "low")).toBe("");
});
