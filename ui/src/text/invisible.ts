/** Escapes invisible characters and bidirectional overrides, which can make text read differently (Trojan Source). */

// Control characters except tab and line feed, bidirectional controls and zero-width characters.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/gu;

export function escapeInvisible(text: string): string {
  return text.replace(/\r\n/g, "\n").replace(INVISIBLE, (each) => {
    const code = each.codePointAt(0) ?? 0;
    // Unicode has a symbol for each C0 control character.
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return `\u27e8${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}
