/** Python source with the colours of its tokens. */
import { html } from "../core/view.js";
import { text } from "./text.js";

const TOKENS = /(?<comment>#.*)|(?<string>[fFrRbBuU]{0,2}("""[\s\S]*?"""|'''[\s\S]*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))|(?<decorator>@[\w.]+)|(?<keyword>\b(?:async|await|def|class|return|if|elif|else|for|while|try|except|finally|raise|with|as|import|from|in|is|not|and|or|lambda|yield|match|case|pass|break|continue|global|nonlocal|assert|del|None|True|False)\b)|(?<number>\b\d[\d_.]*(?:e[+-]?\d+)?\b)/g;

/**
 * @param {string} line
 * @returns {{kind: string, text: string}[]}
 */
export function pythonTokens(line) {
  const tokens = [];
  let end = 0;
  for (const match of line.matchAll(TOKENS)) {
    if (match.index > end) tokens.push({ kind: "plain", text: line.slice(end, match.index) });
    const kind = Object.entries(match.groups ?? {}).find(([, value]) => value !== undefined)?.[0] ?? "plain";
    tokens.push({ kind, text: match[0] });
    end = match.index + match[0].length;
  }
  if (end < line.length) tokens.push({ kind: "plain", text: line.slice(end) });
  return tokens;
}

/** One line of source. @param {{text: string}} props */
export function Source({ text: line }) {
  return html`<code class="source">${pythonTokens(line.slice(0, 500)).map((token) => (token.kind === "plain" ? text(token.text) : html`<span class=${`py-${token.kind}`}>${text(token.text)}</span>`))}</code>`;
}
