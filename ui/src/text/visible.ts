/** Makes what hides seen: a reader must be shown what is there, and in the order it stands. */

// Controls but for tab and line feed, and what turns the direction of text or has no width.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/gu;

export function visible(text: string): string {
  return text.replace(/\r\n/g, "\n").replace(HIDDEN, (each) => {
    const code = each.codePointAt(0) ?? 0;
    // Unicode has a picture for each of the oldest ones.
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return `\u27e8${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}
