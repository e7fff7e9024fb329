import { expect, test } from "vitest";

import { piecesOf } from "./found";

/** A snippet as it is shown, with what is marked between bars. */
const shown = (snippet: string, query: string) =>
  piecesOf(snippet, query)
    .map(({ text, isFound }) => (isFound ? `|${text}|` : text))
    .join("");

test("what was found is marked, whatever its case and accents", () => {
  expect(shown("The [tide] is [high].", "HIGH tide")).toBe("The |tide| is |high|.");
  expect(shown("Low is the [high tide].", '"high tide"')).toBe("Low is the |high tide|.");
  expect(shown("Ein [Résumé]", "resum*")).toBe("Ein |Résumé|");
  expect(shown("私は[東京]に住む", "東京")).toBe("私は|東京|に住む");
  expect(shown("moved_[lighthouse]", "lighthouse -far")).toBe("moved_|lighthouse|");
});

test("brackets of the text itself stay", () => {
  expect(shown("for [row] in rows[1:]: rows[0]", "row")).toBe("for |row| in rows[1:]: rows[0]");
  expect(shown("[items][[row]] [x]", "items row")).toBe("|items|[|row|] [x]");
  expect(shown("a [link](to) [[tide]]", "tide")).toBe("a [link](to) [|tide|]");
  expect(shown("[[1], [a [tide]], []] [", "tide")).toBe("[[1], [a |tide|], []] [");
  expect(shown("say [a [b]] twice", '"a b"')).toBe("say |a [b|] twice");
});

test("a text in which nothing was found is shown as it is", () => {
  expect(shown("- [ ] open, ] closed [x", "low")).toBe("- [ ] open, ] closed [x");
  expect(shown("", "low")).toBe("");
});
