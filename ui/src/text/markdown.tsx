/**
 * Markdown as elements: every word becomes a text node. HTML is shown as it is written, a picture
 * as the words that name it, because fetching it would tell somebody that it was read.
 */
import { marked, type Token, type Tokens } from "marked";
import { Fragment, memo, type ReactNode } from "react";

import { blocksOf } from "./blocks";
import { Code } from "./Code";
import { visible } from "./visible";

const LINKED = /^(https?:\/\/|mailto:)/i;
// Longer texts are lexed piece by piece, so that no single piece takes long.
const WHOLE_LONGEST = 20_000;

/** Show a text; one that is still growing is cut, so that only its end is read again. */
export function Markdown({ text, isGrowing = false }: { text: string; isGrowing?: boolean }) {
  const shown = visible(text);
  const pieces = isGrowing || shown.length > WHOLE_LONGEST ? blocksOf(shown) : [shown];
  return (
    <div className="prose">
      {pieces.map((piece, at) => (
        <Piece key={at} text={piece} isGrowing={isGrowing && at === pieces.length - 1} />
      ))}
    </div>
  );
}

const Piece = memo(function Piece({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  return <Blocks tokens={tokensOf(text)} isGrowing={isGrowing} />;
});

function tokensOf(text: string): Token[] {
  try {
    return marked.lexer(text, { gfm: true, breaks: false });
  } catch {
    return [{ type: "text", raw: text, text }];
  }
}

function Blocks({ tokens, isGrowing = false }: { tokens: readonly Token[]; isGrowing?: boolean }) {
  return tokens.map((token, at) => <Fragment key={at}>{block(token as Tokens.Generic, isGrowing)}</Fragment>);
}

function block(token: Tokens.Generic, isGrowing: boolean): ReactNode {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return <Heading depth={(token as Tokens.Heading).depth}>{inlines(token.tokens)}</Heading>;
    case "paragraph":
      return <p>{inlines(token.tokens)}</p>;
    case "code":
      return <Code text={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} isGrowing={isGrowing} />;
    case "blockquote":
      return (
        <blockquote>
          <Blocks tokens={token.tokens ?? []} />
        </blockquote>
      );
    case "list":
      return <List list={token as Tokens.List} />;
    case "table":
      return <Table table={token as Tokens.Table} />;
    case "hr":
      return <hr />;
    case "text":
      return token.tokens ? inlines(token.tokens) : token.text;
    default:
      return <p className="raw">{token.raw}</p>;
  }
}

function Heading({ depth, children }: { depth: number; children: ReactNode }) {
  // The page has its own first and second level.
  const Tag = (["h3", "h3", "h4", "h5", "h6", "h6"] as const)[depth - 1] ?? "h6";
  return <Tag className={`level-${depth}`}>{children}</Tag>;
}

function List({ list }: { list: Tokens.List }) {
  const Tag = list.ordered ? "ol" : "ul";
  return (
    <Tag {...(list.ordered && list.start !== 1 ? { start: Number(list.start) } : {})}>
      {list.items.map((item, at) => (
        <li key={at} className={item.task ? "task" : undefined}>
          {item.task && <span aria-label={item.checked ? "done" : "open"}>{item.checked ? "☑ " : "☐ "}</span>}
          <Blocks tokens={item.tokens.filter((token) => token.type !== "checkbox")} />
        </li>
      ))}
    </Tag>
  );
}

function Table({ table }: { table: Tokens.Table }) {
  return (
    <div className="table" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>
            {table.header.map((cell, at) => (
              <th key={at} scope="col">
                {inlines(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((row, at) => (
            <tr key={at}>
              {row.map((cell, column) => (
                <td key={column}>{inlines(cell.tokens)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inlines(tokens: readonly Token[] | undefined): ReactNode {
  return (tokens ?? []).map((token, at) => <Fragment key={at}>{inline(token as Tokens.Generic)}</Fragment>);
}

function inline(token: Tokens.Generic): ReactNode {
  switch (token.type) {
    case "text":
      return token.tokens ? inlines(token.tokens) : unescaped(token.text);
    case "escape":
      return token.text;
    case "strong":
      return <strong>{inlines(token.tokens)}</strong>;
    case "em":
      return <em>{inlines(token.tokens)}</em>;
    case "del":
      return <del>{inlines(token.tokens)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "link":
      return <Reference href={(token as Tokens.Link).href}>{inlines(token.tokens)}</Reference>;
    case "image":
      return <span className="picture-name">{token.raw}</span>;
    default:
      return token.raw;
  }
}

/** A link leads where it says, opened by a person and knowing nothing of this page. */
function Reference({ href, children }: { href: string; children: ReactNode }) {
  if (!LINKED.test(href)) return <span title={href}>{children}</span>;
  return (
    <a href={href} title={href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

const ENTITIES: Readonly<Record<string, string>> = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&#39;": "'" };

function unescaped(text: string): string {
  return text.replace(/&(?:lt|gt|amp|quot|#39);/g, (each) => ENTITIES[each] ?? each);
}
