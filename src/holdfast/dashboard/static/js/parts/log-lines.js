/** Log lines, one under the other. */
import { clockMs, moment, iso, toMs } from "../core/format.js";
import { html } from "../core/view.js";
import { brief, Json } from "./json.js";
import { text } from "./text.js";

const STATES = /** @type {Record<string, string>} */ ({ warn: "paused", error: "errored", info: "active", debug: "cancelled" });

/** @param {{lines: any[], brief?: boolean}} props `brief`: only seconds of the time, data on the same line */
export function LogLines({ lines, brief: short = false }) {
  return html`<ol class=${`log-lines mono ${short ? "brief" : ""}`}>${lines.map((line) => html`<li key=${line.id} class=${line.isReplay ? "replayed" : ""}><time datetime=${iso(line.createdAt)} title=${iso(line.createdAt)}>${short ? clockMs(toMs(line.createdAt)).slice(6) : moment(line.createdAt).replace(/$/, clockMs(toMs(line.createdAt)).slice(8))}</time>
    <span class=${`level state s-${STATES[line.level] ?? "active"}`}>${line.level}</span>${short ? null : html`<span class="ink3 cut step-of">${text(line.stepKey ?? line.category ?? "", 60)}${line.attempt > 1 ? ` #${line.attempt}` : ""}</span>`}
    <span class="message bidi">${text(line.message, 2048)} ${line.data === null || line.data === undefined ? null : short ? html`<span class="ink3">${brief(line.data)}</span>` : html`<details><summary class="ink3">${brief(line.data)}</summary><${Json} value=${line.data} /></details>`}</span></li>`)}</ol>`;
}
