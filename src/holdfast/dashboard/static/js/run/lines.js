/** The last lines of the waterfall: messages and log lines over time. */
import { clock, plural } from "../core/format.js";
import { html } from "../core/view.js";
import { Icon } from "../parts/icons.js";
import { text } from "../parts/text.js";

/** @typedef {import("./model.js").Timeline} Timeline */

/**
 * One mark per pixel: the one with the highest rank.
 * @param {{at: number, rank: number}[]} marks
 * @param {(t: number) => number} x
 * @param {number} width
 * @param {number} distance
 */
function perPixel(marks, x, width, distance) {
  /** @type {Map<number, number>} */
  const found = new Map();
  for (const mark of marks) {
    const at = Math.round(x(mark.at) / distance) * distance;
    if (at >= 0 && at <= width) found.set(at, Math.max(mark.rank, found.get(at) ?? 0));
  }
  return [...found.entries()];
}

const LEVELS = ["debug", "info", "warn", "error"];

/** @param {{timeline: Timeline, x: (t: number) => number, width: number, nameWidth: number}} props */
export function Lines({ timeline, x, width, nameWidth }) {
  const own = timeline.messages.filter((message) => !message.type.startsWith("@"));
  const untaken = own.filter((message) => message.takenAt === null);
  const lastTaken = [...own].reverse().find((message) => message.takenAt !== null);
  if (!own.length && !timeline.logs.length) return null;
  const style = { width: `${nameWidth}px` };
  return html`<div class="lines">
    ${own.length ? html`<div class="line-row"><div class="w-name" style=${style}><span class="w-gap"></span><${Icon} name="mail" size=${14} class="ink3" /><span class="cut ink2">messages ${untaken.length ? html`<span class="state s-paused">${untaken.length} not taken</span>` : null}</span><span class="right ink2">${own.length}</span></div>
      <svg width=${width} height="26" role="img" aria-label=${`${plural(own.length, "message")}, ${untaken.length} not consumed`}>${perPixel(own.map((message) => ({ at: message.at, rank: message.takenAt === null ? 1 : 0 })), x, width, 5).map(([at, rank]) => html`<circle class=${rank ? "untaken" : "taken"} cx=${at} cy="13" r="4" />`)}
      ${lastTaken && x(lastTaken.at) > 140 ? html`<text class="message-name" x=${x(lastTaken.at) - 8} y="17" text-anchor="end">${text(`${lastTaken.type}${lastTaken.sender ? `, from ${lastTaken.sender}` : ""}`, 30)}<title>${clock(lastTaken.at)}</title></text>` : null}</svg></div>` : null}
    ${timeline.logs.length ? html`<div class="line-row"><div class="w-name" style=${style}><span class="w-gap"></span><${Icon} name="list" size=${14} class="ink3" /><span class="ink2">log lines</span><span class="right ink2">${timeline.logs.length >= 1000 ? "1,000+" : timeline.logs.length}</span></div>
      <svg width=${width} height="26" role="img" aria-label=${plural(timeline.logs.length, "log line")}>${perPixel(timeline.logs.map((line) => ({ at: line.at, rank: LEVELS.indexOf(line.level) })), x, width, 2).map(([at, rank]) => html`<line class=${`log-${LEVELS[rank] ?? "info"}`} x1=${at} x2=${at} y1="7" y2="19" />`)}</svg></div>` : null}</div>`;
}
