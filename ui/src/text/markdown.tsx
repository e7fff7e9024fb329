/**
 * Markdown as React elements. Text becomes text nodes and HTML is shown as source, which prevents
 * XSS. An image is shown as its source, because fetching it would allow data exfiltration by its URL.
 */
import { marked, type Token, type Tokens } from "marked";
import { Fragment, memo, type ReactNode } from "react";

import { splitBlocks } from "./blocks";
import { Code } from "./Code";
import { escapeInvisible } from "./invisible";

const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
// Longer texts are tokenized block by block, to keep each task on the main thread short.
const MAX_UNSPLIT_LENGTH = 20_000;

/** Show a text. A streamed text is split into blocks, so that only the last one is parsed again. */
export function Markdown({ text, isStreaming = false }: { text: string; isStreaming?: boolean }) {
  const escaped = escapeInvisible(text);
  const blocks = isStreaming || escaped.length > MAX_UNSPLIT_LENGTH ? splitBlocks(escaped) : [escaped];
  return (
    <div className="prose">
      {blocks.map((block, index) => (
        <Block key={index} text={block} isStreaming={isStreaming && index === blocks.length - 1} />
      ))}
    </div>
  );
}

const Block = memo(function Block({ text, isStreaming }: { text: string; isStreaming: boolean }) {
  return <Blocks tokens={tokenize(text)} isStreaming={isStreaming} />;
});

function tokenize(text: string): Token[] {
  try {
    return marked.lexer(text, { gfm: true, breaks: false });
  } catch {
    return [{ type: "text", raw: text, text }];
  }
}

function Blocks({ tokens, isStreaming = false }: { tokens: readonly Token[]; isStreaming?: boolean }) {
  return tokens.map((token, index) => <Fragment key={index}>{renderBlock(token as Tokens.Generic, isStreaming)}</Fragment>);
}

function renderBlock(token: Tokens.Generic, isStreaming: boolean): ReactNode {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return <Heading depth={(token as Tokens.Heading).depth}>{renderInlines(token.tokens)}</Heading>;
    case "paragraph":
      return <p>{renderInlines(token.tokens)}</p>;
    case "code":
      return <Code text={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} isStreaming={isStreaming} />;
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
      return token.tokens ? renderInlines(token.tokens) : token.text;
    default:
      return <p className="raw">{token.raw}</p>;
  }
}

function Heading({ depth, children }: { depth: number; children: ReactNode }) {
  // Levels 1 and 2 belong to the page itself.
  const Tag = (["h3", "h3", "h4", "h5", "h6", "h6"] as const)[depth - 1] ?? "h6";
  return <Tag className={`level-${depth}`}>{children}</Tag>;
}

function List({ list }: { list: Tokens.List }) {
  const Tag = list.ordered ? "ol" : "ul";
  return (
    <Tag {...(list.ordered && list.start !== 1 ? { start: Number(list.start) } : {})}>
      {list.items.map((item, index) => (
        <li key={index} className={item.task ? "task" : undefined}>
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
            {table.header.map((cell, index) => (
              <th key={index} scope="col">
                {renderInlines(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) => (
                <td key={column}>{renderInlines(cell.tokens)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function renderInlines(tokens: readonly Token[] | undefined): ReactNode {
  return (tokens ?? []).map((token, index) => <Fragment key={index}>{renderInline(token as Tokens.Generic)}</Fragment>);
}

function renderInline(token: Tokens.Generic): ReactNode {
  switch (token.type) {
    case "text":
      return token.tokens ? renderInlines(token.tokens) : decodeEntities(token.text);
    case "escape":
      return token.text;
    case "strong":
      return <strong>{renderInlines(token.tokens)}</strong>;
    case "em":
      return <em>{renderInlines(token.tokens)}</em>;
    case "del":
      return <del>{renderInlines(token.tokens)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "link":
      return <ExternalLink href={(token as Tokens.Link).href}>{renderInlines(token.tokens)}</ExternalLink>;
    case "image":
      return <span className="image-source">{token.raw}</span>;
    default:
      return token.raw;
  }
}

/** A link with a safe scheme only (no `javascript:` URLs: XSS), without opener (tabnabbing) or referrer. */
function ExternalLink({ href, children }: { href: string; children: ReactNode }) {
  if (!SAFE_LINK.test(href)) return <span title={href}>{children}</span>;
  return (
    <a href={href} title={href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

const ENTITIES: Readonly<Record<string, string>> = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&#39;": "'" };

function decodeEntities(text: string): string {
  return text.replace(/&(?:lt|gt|amp|quot|#39);/g, (each) => ENTITIES[each] ?? each);
}
