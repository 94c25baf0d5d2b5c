/** The sentence `why` of the server, with names in monospace and times as countdowns. */
import { useNow } from "../core/clock.js";
import { moment, ticking, iso } from "../core/format.js";
import { html } from "../core/view.js";
import { text } from "./text.js";

/** @typedef {{kind: "text" | "name" | "error" | "until" | "place", text: string, at?: number}} WhyToken */

const PATTERN = new RegExp(
  [
    String.raw`'(?<name>(?:[^'\\]|\\.){1,256})'`,
    String.raw`(?<until>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? UTC)(?: \((?:in|for) [^)]*\))?`,
    String.raw`(?<=\bat )(?<place>[\w./\\-]+\.py:\d+)`,
    String.raw`\b(?<error>[A-Z]\w*(?:Error|Exception|Failure|Declined|Lost|Exceeded|Timeout)(?:: [^()]{1,300}?)?)(?=$| in step | in '| at |\)|;|, )`,
    String.raw`(?<code>\b[A-Z]{3,}(?:_[A-Z]+)+\b)`,
  ].join("|"),
  "gu",
);

/**
 * Split the sentence into parts. The concatenated texts are the sentence, apart from quotes around names and countdowns.
 * @param {string} why
 * @returns {WhyToken[]}
 */
export function whyTokens(why) {
  const sentence = why.slice(0, 2000);
  /** @type {WhyToken[]} */
  const tokens = [];
  let end = 0;
  for (const match of sentence.matchAll(PATTERN)) {
    const groups = match.groups ?? {};
    if (match.index > end) tokens.push({ kind: "text", text: sentence.slice(end, match.index) });
    if (groups.name !== undefined) tokens.push({ kind: "name", text: groups.name });
    else if (groups.until !== undefined) tokens.push({ kind: "until", text: groups.until, at: Date.parse(groups.until.replace(" ", "T").replace(" UTC", "Z")) });
    else if (groups.place !== undefined) tokens.push({ kind: "place", text: groups.place });
    else tokens.push({ kind: "error", text: groups.error ?? groups.code ?? match[0] });
    end = match.index + match[0].length;
  }
  if (end < sentence.length) tokens.push({ kind: "text", text: sentence.slice(end) });
  return tokens;
}

/** @param {{token: WhyToken}} props */
function Until({ token }) {
  const now = useNow();
  const at = token.at ?? now;
  return html`<time class="nowrap" datetime=${iso(at)} title=${iso(at)}><b>${moment(at, now)}</b> (${at > now ? `in ${ticking(at - now)}` : `${ticking(now - at)} ago`})</time>`;
}

/** @param {{why: string, place?: boolean}} props `place: false` leaves the position in the code out */
export function Why({ why, place = true }) {
  const tokens = whyTokens(why);
  const shown = place ? tokens : withoutPlace(tokens);
  return html`<span class="why">${shown.map(Token)}</span>`;
}

/**
 * The sentence on one line. If it is too long, the text before the time is cut, not the time.
 * @param {{why: string}} props
 */
export function WhyLine({ why }) {
  const tokens = whyTokens(why);
  const index = tokens.findIndex((token) => token.kind === "until");
  const before = index < 0 ? tokens : tokens.slice(0, index);
  const last = before[before.length - 1];
  const until = index > 0 && last.kind === "text" && last.text.endsWith(" until ");
  const first = until ? [...before.slice(0, -1), { ...last, text: last.text.slice(0, -" until ".length) }] : before;
  return html`<span class="why-line" title=${text(why, 600)}><span class="cut why">${first.map(Token)}</span>${index < 0 ? null : html`<span class="why-until">${until ? " until " : ""}${tokens.slice(index, index + 1).map(Token)}</span><span class="cut why after">${tokens.slice(index + 1).map(Token)}</span>`}</span>`;
}

/** @param {WhyToken} token */
function Token(token) {
  if (token.kind === "until") return html`<${Until} token=${token} />`;
  if (token.kind === "name" || token.kind === "place") return html`<code>${text(token.text)}</code>`;
  return token.kind === "error" ? html`<b>${text(token.text)}</b>` : html`<span>${text(token.text)}</span>`;
}

/** @param {WhyToken[]} tokens */
function withoutPlace(tokens) {
  const index = tokens.findIndex((token) => token.kind === "place");
  if (index < 1) return tokens;
  const before = { ...tokens[index - 1], text: tokens[index - 1].text.replace(/ at $/, "") };
  return [...tokens.slice(0, index - 1), before, ...tokens.slice(index + 1)];
}
