/** States: their shapes, words and colours. A colour is never alone. */
import { html } from "../core/view.js";

/** @typedef {"active" | "waiting" | "paused" | "parked" | "retrying" | "complete" | "errored" | "cancelled" | "terminated" | "pending" | "skipped" | "lost"} State */

/** @type {Record<string, State>} states of steps, nodes and chain steps, as states of runs */
const EQUIVALENT = {
  completed: "complete", ok: "complete", done: "complete", delivered: "complete", DONE: "complete",
  running: "active", started: "active", RUNNING: "active", READY: "active", ready: "active",
  WAITING: "waiting", PENDING: "pending", error: "errored", failed: "errored", DEAD: "errored", pausing: "paused",
};

/** @param {string} state @returns {State} */
export function stateOf(state) {
  return EQUIVALENT[state] ?? /** @type {State} */ (state);
}

/**
 * The state of a run as the dashboard shows it: a waiting run with a failed attempt is retrying.
 * @param {string} status
 * @param {{kind?: string} | undefined} parts of `why`
 * @returns {State}
 */
export function runState(status, parts) {
  if (status === "waiting" && parts?.kind === "retry") return "retrying";
  if (status === "paused" && parts?.kind === "parked") return "parked";
  return /** @type {State} */ (status);
}

/** @param {State} state */
function shape(state) {
  switch (state) {
    case "active":
      return html`<circle cx="8" cy="8" r="5.6" fill="none" stroke="var(--m)" stroke-opacity=".4" stroke-width="1.8" /><path d="M8 2.4A5.6 5.6 0 0 1 13.6 8" fill="none" stroke="var(--s)" stroke-width="1.8" stroke-linecap="round" /><circle cx="8" cy="8" r="2.2" fill="var(--s)" />`;
    case "waiting":
      return html`<circle cx="8" cy="8" r="5.6" fill="none" stroke="var(--s)" stroke-width="1.6" /><path d="M8 4.8V8.2L10 9.6" fill="none" stroke="var(--s)" stroke-width="1.6" stroke-linecap="round" />`;
    case "paused":
      return html`<circle cx="8" cy="8" r="5.6" fill="none" stroke="var(--s)" stroke-width="1.6" /><path d="M6.4 5.8v4.4M9.6 5.8v4.4" stroke="var(--s)" stroke-width="1.6" stroke-linecap="round" />`;
    case "parked":
      return html`<circle cx="8" cy="8" r="6.4" fill="var(--s)" /><path d="M6.3 5.6v4.8M9.7 5.6v4.8" stroke="var(--bg)" stroke-width="1.7" stroke-linecap="round" />`;
    case "retrying":
      return html`<path d="M13 8a5 5 0 1 1-1.6-3.7M13.2 2.2v3.4H9.8" fill="none" stroke="var(--s)" stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" />`;
    case "complete":
      return html`<circle cx="8" cy="8" r="6.4" fill="var(--s)" /><path d="M5.2 8.2 7.2 10.2 10.9 6" fill="none" stroke="var(--bg)" stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" />`;
    case "errored": case "lost":
      return html`<path d="M5.4 1.6h5.2l3.8 3.8v5.2l-3.8 3.8H5.4L1.6 10.6V5.4Z" fill="var(--s)" /><path d="M5.9 5.9l4.2 4.2M10.1 5.9 5.9 10.1" stroke="var(--bg)" stroke-width="1.7" stroke-linecap="round" />`;
    case "cancelled":
      return html`<circle cx="8" cy="8" r="5.6" fill="none" stroke="var(--s)" stroke-width="1.6" /><path d="M4.2 11.8 11.8 4.2" stroke="var(--s)" stroke-width="1.6" />`;
    case "terminated":
      return html`<rect x="2" y="2" width="12" height="12" rx="2.5" fill="var(--s)" /><rect x="5.6" y="5.6" width="4.8" height="4.8" fill="var(--bg)" />`;
    case "skipped":
      return html`<circle cx="8" cy="8" r="5.6" fill="none" stroke="var(--s)" stroke-width="1.6" stroke-dasharray="2.2 2" /><path d="M5.6 8h4.8" stroke="var(--s)" stroke-width="1.6" />`;
    default:
      return html`<circle cx="8" cy="8" r="5.6" fill="none" stroke="var(--s)" stroke-width="1.6" stroke-dasharray="2.2 2" />`;
  }
}

/** @param {{state: string, size?: number, label?: boolean}} props `label`: the glyph stands without its word */
export function Glyph({ state, size = 14, label = false }) {
  const known = stateOf(state);
  return html`<svg class=${`s-${known}`} width=${size} height=${size} viewBox="0 0 16 16" role=${label ? "img" : undefined}
    aria-label=${label ? known : undefined} aria-hidden=${label ? undefined : "true"}>${shape(known)}</svg>`;
}

/** @param {{state: string, word?: string}} props */
export function Status({ state, word }) {
  const known = stateOf(state);
  return html`<span class=${`status s-${known}`}><${Glyph} state=${known} />${word ?? known}</span>`;
}

/** @param {{state: string, word?: string}} props */
export function Badge({ state, word }) {
  const known = stateOf(state);
  return html`<span class=${`badge s-${known}`}><${Glyph} state=${known} />${word ?? known}</span>`;
}
