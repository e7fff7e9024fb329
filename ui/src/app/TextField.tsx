import { useLayoutEffect, useRef, type Ref } from "react";

interface Props {
  readonly label: string;
  readonly value: string;
  readonly onChange: (text: string) => void;
  readonly onSend: () => void;
  readonly placeholder?: string;
  readonly rows?: number;
  readonly ref?: Ref<HTMLTextAreaElement>;
}

const MAX_HEIGHT_PX = 320;

/** A text area that grows with its text; Enter sends, Shift+Enter starts a new line. */
export function TextField({ label, value, onChange, onSend, placeholder, rows = 1, ref }: Props) {
  const textarea = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const field = textarea.current;
    if (field === null) return;
    field.style.height = "auto";
    // A hidden field has no height to measure.
    if (field.scrollHeight === 0) return;
    field.style.height = `${Math.min(MAX_HEIGHT_PX, field.scrollHeight)}px`;
  }, [value]);
  return (
    <textarea
      ref={(element) => {
        textarea.current = element;
        if (typeof ref === "function") ref(element);
        else if (ref) ref.current = element;
      }}
      aria-label={label}
      placeholder={placeholder}
      rows={rows}
      value={value}
      onChange={(event) => onChange(event.target.value)}
      onKeyDown={(event) => {
        // During IME composition, Enter confirms the composed text.
        if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
        event.preventDefault();
        onSend();
      }}
    />
  );
}
