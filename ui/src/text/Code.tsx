/** A block of code, highlighted once it no longer changes. */
import { memo, useEffect, useState, type ReactNode } from "react";

import { runWhenIdle } from "../app/idle";
import { CopyButton } from "./CopyButton";
import { Diff } from "./Diff";
import { isDiff, parseDiff } from "./diff";
import type { Tree } from "./highlight";

const MAX_HIGHLIGHTED_LENGTH = 30_000;

interface Props {
  readonly text: string;
  readonly language?: string;
  readonly isStreaming?: boolean;
}

export const Code = memo(function Code({ text, language = "", isStreaming = false }: Props) {
  const name = language.trim().split(/\s/)[0]?.toLowerCase() ?? "";
  if (name === "diff" || name === "patch" || (name === "" && isDiff(text))) return <Diff lines={parseDiff(text)} />;
  return (
    <figure className="code">
      <figcaption>
        <span>{name || "text"}</span>
        <CopyButton text={text} />
      </figcaption>
      <pre tabIndex={0}>
        <code>{isStreaming || text.length > MAX_HIGHLIGHTED_LENGTH ? text : <Highlighted text={text} language={name} />}</code>
      </pre>
    </figure>
  );
});

function Highlighted({ text, language }: { text: string; language: string }) {
  const [tree, setTree] = useState<Tree | null>(null);
  useEffect(() => {
    let isMounted = true;
    // The highlighter is large: load it only when there is code, after the text is shown.
    const cancel = runWhenIdle(() => void import("./highlight").then(({ highlight }) => isMounted && setTree(highlight(text, language))));
    return () => {
      isMounted = false;
      cancel();
    };
  }, [text, language]);
  return tree === null ? text : renderNodes(tree.children);
}

function renderNodes(children: Tree["children"]): ReactNode {
  return children.map((node, index) => {
    if (node.type === "text") return node.value;
    if (node.type !== "element") return null;
    const names = node.properties["className"];
    return (
      <span key={index} className={Array.isArray(names) ? names.join(" ") : undefined}>
        {renderNodes(node.children as Tree["children"])}
      </span>
    );
  });
}
