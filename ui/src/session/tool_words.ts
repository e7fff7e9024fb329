/** Tool calls in a few words, and the changes to files that they tell of. */
import { difference, isDiff, readDiff, type DiffLine } from "../text/diff";
import { asFields, asText, type Fields } from "./event_data";

// The first of these that a call has says best what it is about.
const TELLING = ["command", "pattern", "query", "path", "file_path", "filePath", "url", "message", "title", "name"];
const SUMMARY_LONGEST = 160;

/** Return what a call is about, on one line. */
export function summaryOf(given: Fields): string {
  const name = TELLING.find((each) => typeof given[each] === "string");
  if (name === undefined) return Object.keys(given).length === 0 ? "" : short(JSON.stringify(given));
  const others = given["args"];
  const line = [given[name], ...(Array.isArray(others) ? (others as unknown[]) : [])].map(String).join(" ");
  return short(line);
}

function short(text: string): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > SUMMARY_LONGEST ? `${line.slice(0, SUMMARY_LONGEST)}…` : line;
}

export interface Change {
  readonly path: string;
  readonly lines: readonly DiffLine[];
}

/** Return what a call changes, as far as its arguments and its result show it. */
export function changesOf(name: string, given: Fields, result: unknown): Change[] {
  const told = asFields(result)?.["diffs"];
  if (Array.isArray(told)) return (told as unknown[]).flatMap(toldChange);
  const path = asText(given["path"]);
  if (name === "edit_file") {
    return [{ path, lines: difference(asText(given["old"]), asText(given["new"])) }];
  }
  if (name === "write_file") return [{ path, lines: difference("", asText(given["content"])) }];
  return [];
}

function toldChange(value: unknown): Change[] {
  const fields = asFields(value);
  if (fields === null) return [];
  const lines = difference(asText(fields["old_text"]), asText(fields["new_text"]));
  return [{ path: asText(fields["path"]), lines }];
}

/** Return a result as text to read: the words of it where it has them, else all of it. */
export function resultText(result: unknown): string {
  if (typeof result === "string") return result;
  const fields = asFields(result);
  const words = ["stdout", "stderr", "output", "content", "text"].map((name) => asText(fields?.[name])).filter(Boolean);
  const isAllWords = fields !== null && Object.keys(fields).length <= words.length;
  if (isAllWords && words.length > 0) return words.join("\n");
  return JSON.stringify(result, null, 2) ?? "";
}

/** A question of ours begins with what it is about; a diff of it, where there is one, follows. */
export function questionOf(text: string): { head: string; lines: DiffLine[] | null } {
  const [head = "", ...rest] = text.split("\n");
  const body = rest.join("\n");
  const isChange = isDiff(body) || (rest.length > 0 && rest.every((line) => /^[+\\]/.test(line)));
  return isChange ? { head, lines: readDiff(body) } : { head: text, lines: null };
}
