/** Splits streamed Markdown into blocks; text that is appended changes only the last block. */

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
// A list item, or a prefix of one that is still incomplete.
const CONTINUES = /^\s|^[-*+](\s|$)|^\d+([.)]?$|[.)]\s)/;

/** Split a text into paragraphs, lists and fenced code; the joined blocks equal the text. */
export function splitBlocks(text: string): string[] {
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
    // An indented line belongs to the block before it, usually a list.
    const startsBlock = isBlank && !fence && line.trim() !== "" && !CONTINUES.test(line);
    if (startsBlock && at > start) {
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
