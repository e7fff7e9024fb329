/** What a search found, in pieces: the server puts it in brackets, and a text may have its own. */

export interface Piece {
  readonly text: string;
  readonly isFound: boolean;
}

const WORDS = /[\p{L}\p{N}]+/gu;
const IN_WORDS = /^[\p{L}\p{N}](?:.*[\p{L}\p{N}\p{M}])?$/su;

/** Return a snippet in pieces; brackets around anything but words of the query belong to the text. */
export function piecesOf(snippet: string, query: string): Piece[] {
  const isAsked = askedIn(query);
  const pieces: Piece[] = [];
  let from = 0;
  for (let at = snippet.indexOf("["); at >= 0; at = snippet.indexOf("[", Math.max(at + 1, from))) {
    const end = endOf(snippet, at, isAsked);
    if (end < 0) continue;
    pieces.push({ text: snippet.slice(from, at), isFound: false }, { text: snippet.slice(at + 1, end), isFound: true });
    from = end + 1;
  }
  return [...pieces, { text: snippet.slice(from), isFound: false }].filter((each) => each.text !== "");
}

type IsAsked = (text: string) => boolean;

/** Return where the bracket that opens at a place is closed; below 0 if it marks nothing found. */
function endOf(snippet: string, at: number, isAsked: IsAsked): number {
  for (let end = snippet.indexOf("]", at); end >= 0; end = snippet.indexOf("]", end + 1)) {
    if (isAsked(snippet.slice(at + 1, end))) return end;
  }
  return -1;
}

function askedIn(query: string): IsAsked {
  const asked = folded(query);
  const words = new Set(asked.match(WORDS));
  const beginnings = Array.from(asked.matchAll(/([\p{L}\p{N}]+)"?\*/gu), ([, word = ""]) => word);
  const isWord = (word: string) => words.has(word) || beginnings.some((each) => word.startsWith(each));
  return (text) => IN_WORDS.test(text) && (folded(text).match(WORDS) ?? []).every(isWord);
}

/** As the server compares: without case and accents. */
function folded(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}
