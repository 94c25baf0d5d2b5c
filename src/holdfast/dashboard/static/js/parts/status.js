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

/** @param {string} [dashes] */
const ring = (dashes) => html`<circle cx="8" cy="8" r="5.6" fill="none" stroke="var(--s)" stroke-width="1.6" stroke-dasharray=${dashes} />`;
const disc = () => html`<circle cx="8" cy="8" r="6.4" fill="var(--s)" />`;
/** @param {string} path @param {string} [colour] */
const line = (path, colour = "s") => html`<path d=${path} fill="none" stroke=${`var(--${colour})`} stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" />`;

/** @param {State} state */
function shape(state) {
  switch (state) {
    case "active":
      return html`<circle cx="8" cy="8" r="5.6" fill="none" stroke="var(--m)" stroke-opacity=".4" stroke-width="1.8" />${line("M8 2.4A5.6 5.6 0 0 1 13.6 8")}<circle cx="8" cy="8" r="2.2" fill="var(--s)" />`;
    case "waiting":
      return [ring(), line("M8 4.8V8.2L10 9.6")];
    case "paused":
      return [ring(), line("M6.4 5.8v4.4M9.6 5.8v4.4")];
    case "parked":
      return [disc(), line("M6.3 5.6v4.8M9.7 5.6v4.8", "bg")];
    case "retrying":
      return line("M13 8a5 5 0 1 1-1.6-3.7M13.2 2.2v3.4H9.8");
    case "complete":
      return [disc(), line("M5.2 8.2 7.2 10.2 10.9 6", "bg")];
    case "errored": case "lost":
      return html`<path d="M5.4 1.6h5.2l3.8 3.8v5.2l-3.8 3.8H5.4L1.6 10.6V5.4Z" fill="var(--s)" />${line("M5.9 5.9l4.2 4.2M10.1 5.9 5.9 10.1", "bg")}`;
    case "cancelled":
      return [ring(), line("M4.2 11.8 11.8 4.2")];
    case "terminated":
      return html`<rect x="2" y="2" width="12" height="12" rx="2.5" fill="var(--s)" /><rect x="5.6" y="5.6" width="4.8" height="4.8" fill="var(--bg)" />`;
    case "skipped":
      return [ring("2.2 2"), line("M5.6 8h4.8")];
    default:
      return ring("2.2 2");
  }
}

/** @param {{state: string, size?: number, label?: boolean}} props `label`: the glyph stands without its word */
export function Glyph({ state, size = 14, label = false }) {
  const known = stateOf(state);
  return html`<svg class=${`s-${known}`} width=${size} height=${size} viewBox="0 0 16 16" role=${label ? "img" : undefined}
    aria-label=${label ? known : undefined} aria-hidden=${label ? undefined : "true"}>${shape(known)}</svg>`;
}

/** @param {{state: string, word?: string, class?: string}} props */
export function Status({ state, word, class: className = "status" }) {
  const known = stateOf(state);
  return html`<span class=${`${className} s-${known}`}><${Glyph} state=${known} />${word ?? known}</span>`;
}

/** @param {{state: string, word?: string}} props */
export const Badge = (props) => html`<${Status} class="badge" ...${props} />`;
