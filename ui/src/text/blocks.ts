/** Cuts a growing markdown text where it can be cut: what stands above the cut never changes. */

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
// An entry of a list, or what may still become one.
const CONTINUES = /^\s|^[-*+](\s|$)|^\d+([.)]?$|[.)]\s)/;

/** Return the text in pieces, each a paragraph, list or fenced code; joined they are the text. */
export function blocksOf(text: string): string[] {
  const blocks: string[] = [];
  let fence = "";
  let start = 0;
  let at = 0;
  let isBlank = false;
  while (at < text.length) {
    const end = text.indexOf("\n", at);
    const next = end < 0 ? text.length : end + 1;
    const line = text.slice(at, end < 0 ? next : end);
    const mark = FENCE.exec(line)?.[1] ?? "";
    // Indented lines go on with what stands before them, a list most often.
    const begins = isBlank && !fence && line.trim() !== "" && !CONTINUES.test(line);
    if (begins && at > start) {
      blocks.push(text.slice(start, at));
      start = at;
    }
    if (!fence && mark) fence = mark;
    else if (fence && mark.startsWith(fence) && line.trim() === mark) fence = "";
    isBlank = line.trim() === "";
    at = next;
  }
  if (start < text.length) blocks.push(text.slice(start));
  return blocks;
}
