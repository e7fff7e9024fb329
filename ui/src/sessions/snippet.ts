/** Splits a search snippet at its matches, which the server puts in brackets; the text may contain brackets, too. */

export interface Piece {
  readonly text: string;
  readonly isMatch: boolean;
}

const WORDS = /[\p{L}\p{N}]+/gu;
const STARTS_AND_ENDS_WITH_WORD = /^[\p{L}\p{N}](?:.*[\p{L}\p{N}\p{M}])?$/su;

/** Split a snippet into matches and other text; brackets around anything but words of the query are text. */
export function splitSnippet(snippet: string, query: string): Piece[] {
  const matches = buildMatcher(query);
  const pieces: Piece[] = [];
  let from = 0;
  for (let at = snippet.indexOf("["); at >= 0; at = snippet.indexOf("[", Math.max(at + 1, from))) {
    const end = findEnd(snippet, at, matches);
    if (end < 0) continue;
    pieces.push({ text: snippet.slice(from, at), isMatch: false }, { text: snippet.slice(at + 1, end), isMatch: true });
    from = end + 1;
  }
  return [...pieces, { text: snippet.slice(from), isMatch: false }].filter((each) => each.text !== "");
}

type Matcher = (text: string) => boolean;

/** Return the index of the closing bracket of a match that opens at an index; -1 if it is not a match. */
function findEnd(snippet: string, at: number, matches: Matcher): number {
  for (let end = snippet.indexOf("]", at); end >= 0; end = snippet.indexOf("]", end + 1)) {
    if (matches(snippet.slice(at + 1, end))) return end;
  }
  return -1;
}

function buildMatcher(query: string): Matcher {
  const normalized = normalize(query);
  const words = new Set(normalized.match(WORDS));
  const prefixes = Array.from(normalized.matchAll(/([\p{L}\p{N}]+)"?\*/gu), ([, word = ""]) => word);
  const isWord = (word: string) => words.has(word) || prefixes.some((each) => word.startsWith(each));
  return (text) => STARTS_AND_ENDS_WITH_WORD.test(text) && (normalize(text).match(WORDS) ?? []).every(isWord);
}

/** Remove case and accents, as the search of the server does. */
function normalize(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}
