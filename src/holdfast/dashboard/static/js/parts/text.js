/**
 * Text from outside the dashboard. Control characters that reorder or hide text are shown as their code points, and long
 * texts are cut before they reach the layout engine. Markup has no meaning: the view library creates text nodes only.
 */
const LONGEST = 4000;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/gu;

/**
 * @param {unknown} value
 * @param {number} [longest]
 */
export function text(value, longest = LONGEST) {
  const full = typeof value === "string" ? value : String(value);
  const cut = full.length > longest ? `${full.slice(0, longest)}… (${full.length.toLocaleString("en-US")} characters)` : full;
  return cut.replace(HIDDEN, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** @param {string} worker `app@host:pid:nonce` is too long for a bar */
export function shortWorker(worker) {
  const parts = worker.split(/[@:]/);
  return parts.length >= 4 ? `${parts[1]}/${parts[3].slice(0, 4)}` : text(worker, 24);
}
