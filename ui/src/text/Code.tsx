/** A block of code, with colours once it stands still. */
import { memo, useEffect, useState, type ReactNode } from "react";

import { whenIdle } from "../app/idle";
import { CopyButton } from "./CopyButton";
import { Diff } from "./Diff";
import { isDiff, readDiff } from "./diff";
import type { Tree } from "./highlight";

const COLOURED_LONGEST = 30_000;

interface Props {
  readonly text: string;
  readonly language?: string;
  readonly isGrowing?: boolean;
}

export const Code = memo(function Code({ text, language = "", isGrowing = false }: Props) {
  const name = language.trim().split(/\s/)[0]?.toLowerCase() ?? "";
  if (name === "diff" || name === "patch" || (name === "" && isDiff(text))) return <Diff lines={readDiff(text)} />;
  return (
    <figure className="code">
      <figcaption>
        <span>{name || "text"}</span>
        <CopyButton text={text} />
      </figcaption>
      <pre tabIndex={0}>
        <code>{isGrowing || text.length > COLOURED_LONGEST ? text : <Coloured text={text} language={name} />}</code>
      </pre>
    </figure>
  );
});

function Coloured({ text, language }: { text: string; language: string }) {
  const [tree, setTree] = useState<Tree | null>(null);
  useEffect(() => {
    let isWanted = true;
    // Words first: colours are loaded when the first code is there.
    const forget = whenIdle(() => void import("./highlight").then(({ coloured }) => isWanted && setTree(coloured(text, language))));
    return () => {
      isWanted = false;
      forget();
    };
  }, [text, language]);
  return tree === null ? text : nodes(tree.children);
}

function nodes(children: Tree["children"]): ReactNode {
  return children.map((node, at) => {
    if (node.type === "text") return node.value;
    if (node.type !== "element") return null;
    const names = node.properties["className"];
    return (
      <span key={at} className={Array.isArray(names) ? names.join(" ") : undefined}>
        {nodes(node.children as Tree["children"])}
      </span>
    );
  });
}
