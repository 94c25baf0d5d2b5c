/** The bars of one row of the waterfall, as SVG. */
import { html } from "../core/view.js";

/** @typedef {import("./model.js").Row} Row */
/** @typedef {import("./model.js").Item} Item */
/** @typedef {(t: number) => number} X position of a moment in pixels */

const TOP = 8;
const TALL = 12;
const THINNEST = 3;

/** @param {number} x @param {number} until */
const wide = (x, until) => Math.max(THINNEST, until - x);

/** Patterns of waits, sleeps and lost attempts. Every SVG of the page may refer to them. */
export function Patterns() {
  return html`<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>
    ${["wait", "sleep", "lost"].map((kind) => html`<pattern id=${`hatch-${kind}`} width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class=${`hatch-${kind}-ground`} width="6" height="6" /><rect class=${`hatch-${kind}-line`} width="2" height="6" /></pattern>`)}</defs></svg>`;
}

/** @param {{row: Row, x: X, now: number, width: number}} props */
export function Bars({ row, x, now, width }) {
  if (row.kind === "run") return html`<rect class="whole" x=${x(row.start)} y=${TOP + 4} width=${wide(x(row.start), x(row.end ?? now))} height="3" rx="1.5" />`;
  if (row.kind === "group") {
    const [from, until] = [x(row.start), x(row.end ?? now)];
    return html`<path class="bracket" d=${`M${from} ${TOP + TALL}V${TOP + 1}H${until}V${TOP + TALL}`} />`;
  }
  const item = /** @type {Item} */ (row.item);
  if (item.type === "sleep") return html`<${Wait} item=${item} x=${x} now=${now} kind="sleep" width=${width} />`;
  if (item.type === "waitForEvent" || (item.type === "do" && item.status === "waiting" && !item.attempts)) return html`<${Wait} item=${item} x=${x} now=${now} kind="wait" width=${width} />`;
  if (item.type === "child" && !item.attempts?.length) {
    const state = item.status === "errored" ? "errored" : item.end === null ? "active" : "complete";
    return html`<rect class=${`nested s-${state}`} x=${x(item.start)} y=${TOP + 3} width=${wide(x(item.start), x(item.end ?? now))} height="6" rx="3" />`;
  }
  return html`<${Attempts} item=${item} x=${x} now=${now} />`;
}

/** @param {{item: Item, x: X, now: number, kind: "sleep" | "wait", width: number}} props */
function Wait({ item, x, now, kind, width }) {
  const from = x(item.start);
  const until = x(item.end ?? now);
  const deadline = item.end === null && item.wakeAt !== undefined && item.wakeAt > now ? x(item.wakeAt) : null;
  return html`<rect class=${`hatched ${kind}`} x=${from} y=${TOP} width=${wide(from, until)} height=${TALL} rx="2" fill=${`url(#hatch-${kind})`} />
    ${deadline === null ? null : html`<path class=${`rest ${kind}`} d=${`M${until} ${TOP + 0.5}H${Math.min(deadline, width + 10)}M${until} ${TOP + TALL - 0.5}H${Math.min(deadline, width + 10)}`} /><line class=${`deadline ${kind}`} x1=${deadline} x2=${deadline} y1=${TOP - 3} y2=${TOP + TALL + 3} />`}
    ${kind === "wait" && item.end !== null && item.status === "completed" ? html`<path class="envelope" transform=${`translate(${until + 5} ${TOP + 1.5})`} d="M0 0h11v8.5H0ZM0 .5l5.5 4L11 .5" />` : null}`;
}

/** @param {{item: Item, x: X, now: number}} props */
function Attempts({ item, x, now }) {
  const attempts = item.attempts?.length ? item.attempts : [{ n: 1, start: item.start, end: item.end, outcome: item.status === "errored" ? "failed" : item.end === null ? "running" : "ok" }];
  const several = attempts.length > 1;
  const last = attempts[attempts.length - 1];
  const retry = item.end === null && /** @type {any} */ (last).retryAt ? x(/** @type {any} */ (last).retryAt) : null;
  return html`${attempts.map((attempt, index) => {
    const from = x(attempt.start);
    const until = x(attempt.end ?? now);
    const before = index ? x(attempts[index - 1].end ?? attempts[index - 1].start) : from;
    return html`${index && from - before > 2 ? html`<line class="backoff" x1=${before} x2=${from} y1=${TOP + TALL / 2} y2=${TOP + TALL / 2} />` : null}
      <rect class=${`attempt ${attempt.outcome}`} x=${from} y=${TOP} width=${wide(from, until)} height=${TALL} rx="2" fill=${attempt.outcome === "lost" ? "url(#hatch-lost)" : undefined} />
      ${several && until - from > 14 ? html`<text class=${`attempt-number ${attempt.outcome}`} x=${(from + until) / 2} y=${TOP + 9.5} text-anchor="middle">${attempt.n}</text>` : null}`;
  })}${retry === null ? null : html`<line class="backoff" x1=${x(last.end ?? now)} x2=${retry} y1=${TOP + TALL / 2} y2=${TOP + TALL / 2} />`}`;
}
