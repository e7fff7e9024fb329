/** Reads and makes line differences. */

export type Mark = "added" | "removed" | "same" | "place";

export interface DiffLine {
  readonly mark: Mark;
  readonly text: string;
}

const MARKS: Readonly<Record<string, Mark>> = { "+": "added", "-": "removed", " ": "same", "@": "place", "\\": "place" };
const HEADERS = /^(diff --git|index |--- |\+\+\+ |new file|deleted file|similarity|rename )/;
// Beyond it comparing would take long; the old and the new are shown whole.
const COMPARED_MOST = 1_500;

/** Tell whether a text is a unified diff, so that it can be shown as one. */
export function isDiff(text: string): boolean {
  return /^@@ -\d+(,\d+)? \+\d+(,\d+)? @@/m.test(text);
}

export function readDiff(text: string): DiffLine[] {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines.map((line) => {
    if (HEADERS.test(line)) return { mark: "place", text: line };
    const mark = MARKS[line[0] ?? " "];
    if (mark === undefined || mark === "place") return { mark: mark ?? "same", text: line };
    return { mark, text: line.slice(1) };
  });
}

/** Return what differs between two texts, with the lines around it. */
export function difference(before: string, after: string, around = 3): DiffLine[] {
  const [old, now] = [linesOf(before), linesOf(after)];
  let top = 0;
  while (top < old.length && top < now.length && old[top] === now[top]) top += 1;
  let bottom = 0;
  const shortest = Math.min(old.length, now.length) - top;
  while (bottom < shortest && old[old.length - 1 - bottom] === now[now.length - 1 - bottom]) bottom += 1;
  const middle = compared(old.slice(top, old.length - bottom), now.slice(top, now.length - bottom));
  const above = old.slice(Math.max(0, top - around), top).map(same);
  const below = old.slice(old.length - bottom, old.length - bottom + around).map(same);
  return middle.length === 0 ? [] : [...above, ...middle, ...below];
}

function linesOf(text: string): string[] {
  const lines = text.split("\n");
  // What ends the last line begins no other.
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

const same = (text: string): DiffLine => ({ mark: "same", text });
const removed = (text: string): DiffLine => ({ mark: "removed", text });
const added = (text: string): DiffLine => ({ mark: "added", text });

function compared(old: string[], now: string[]): DiffLine[] {
  if (old.length * now.length > COMPARED_MOST ** 2) return [...old.map(removed), ...now.map(added)];
  const width = now.length + 1;
  // How many lines the rests from here on have in common.
  const shared = new Uint16Array((old.length + 1) * width);
  const at = (i: number, j: number): number => shared[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      shared[i * width + j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const lines: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push(same(old[i] ?? ""));
      i += 1;
      j += 1;
    } else if (j >= now.length || (i < old.length && at(i + 1, j) >= at(i, j + 1))) {
      lines.push(removed(old[i] ?? ""));
      i += 1;
    } else {
      lines.push(added(now[j] ?? ""));
      j += 1;
    }
  }
  return lines;
}
