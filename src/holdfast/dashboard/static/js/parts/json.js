/**
 * A JSON value as an indented, coloured text. Objects and lists beyond a depth or number are folded and rendered when
 * they are opened, so that the size of a value does not matter.
 */
import { plural } from "../core/format.js";
import { html, useState } from "../core/view.js";
import { text } from "./text.js";

const OPEN_DEPTH = 3;
const PAGE = 100;
const LONGEST_TEXT = 1000;
const REDACTED = "<redacted>";

/** @param {{value: unknown}} props */
function Leaf({ value }) {
  const [full, setFull] = useState(false);
  if (value === REDACTED) return html`<span class="redacted">redacted</span>`;
  if (typeof value !== "string") return html`<span class="j-number">${text(JSON.stringify(value) ?? "null")}</span>`;
  if (value.length <= LONGEST_TEXT || full) return html`<span class="j-text">${text(JSON.stringify(value), 200_000)}</span>`;
  return html`<span class="j-text">${text(JSON.stringify(value.slice(0, LONGEST_TEXT)).slice(0, -1))}</span>
    <button class="fold-button" onClick=${() => setFull(true)}>… ${plural(value.length, "character")}</button>`;
}

/** @param {{entries: [string | null, unknown][], depth: number, close: string}} props */
function Entries({ entries, depth }) {
  const [shown, setShown] = useState(PAGE);
  return html`${entries.slice(0, shown).map(([key, value], index) => html`<div class="j-entry">
      ${key === null ? null : html`<span class="j-key bidi">${text(JSON.stringify(key), 300)}</span>: `}<${Node} value=${value} depth=${depth + 1} />${index < entries.length - 1 ? "," : ""}
    </div>`)}
    ${entries.length > shown ? html`<div class="j-entry"><button class="fold-button" onClick=${() => setShown(shown + 10 * PAGE)}>${plural(entries.length - shown, "more entry", "more entries")}</button></div>` : null}`;
}

/** @param {{value: unknown, depth: number}} props */
function Node({ value, depth }) {
  const [open, setOpen] = useState(depth < OPEN_DEPTH);
  if (value === null || typeof value !== "object") return html`<${Leaf} value=${value} />`;
  const list = Array.isArray(value);
  const [start, end] = list ? "[]" : "{}";
  const count = list ? value.length : Object.keys(value).length;
  if (count === 0) return html`<span>${start}${end}</span>`;
  if (!open) return html`<button class="fold-button" aria-expanded="false" onClick=${() => setOpen(true)}>${start}${list ? plural(count, "item") : plural(count, "key")}${end}</button>`;
  /** @type {[string | null, unknown][]} */
  const entries = list ? value.map((item) => [null, item]) : Object.entries(value);
  return html`<span>${start}</span><${Entries} entries=${entries} depth=${depth} /><span>${end}</span>`;
}

/** @param {{value: unknown}} props */
export function Json({ value }) {
  return html`<div class="json mono sunken" tabindex="0" role="group" aria-label="value"><${Node} value=${value} depth=${0} /></div>`;
}

/**
 * A short form for one line: `{"ok": true}`.
 * @param {unknown} value
 */
export function brief(value, longest = 80) {
  if (value === undefined) return "";
  return text(JSON.stringify(shallow(value, 0)) ?? "", longest);
}

/** @param {unknown} value @param {number} depth @returns {unknown} */
function shallow(value, depth) {
  if (typeof value === "string") return value.length > 60 ? `${value.slice(0, 60)}…` : value;
  if (value === null || typeof value !== "object") return value;
  if (depth > 1) return Array.isArray(value) ? "[…]" : "{…}";
  if (Array.isArray(value)) return value.slice(0, 5).map((item) => shallow(item, depth + 1));
  return Object.fromEntries(Object.entries(value).slice(0, 8).map(([key, item]) => [key.slice(0, 40), shallow(item, depth + 1)]));
}
