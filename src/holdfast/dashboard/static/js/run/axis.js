/** The head of the waterfall: times, labels of folds, the band of workers that held the run; and the lines behind the rows. */
import { clock, clockMs, duration } from "../core/format.js";
import { html } from "../core/view.js";
import { shortWorker } from "../parts/text.js";
import { gapsOf } from "./model.js";
import { segmentAt, ticks } from "./scale.js";

/** @typedef {import("./scale.js").Scale} Scale */
/** @typedef {import("./scale.js").Window} Window */
/** @typedef {import("./model.js").Timeline} Timeline */

const MOST_WAVES = 60;
const CHARACTER = 6.4;

/** Holders of a run without the gaps of a suspended run: neighbours of one worker that are close are one bar. */
const CLOSE_PX = 3;

/** @param {Timeline["holders"]} holders @param {(t: number) => number} x @param {number} end */
function joined(holders, x, end) {
  /** @type {{worker: string | null, from: number, until: number}[]} */
  const bars = [];
  for (const holder of holders) {
    const [from, until] = [x(holder.start), x(holder.end ?? end)];
    const last = bars[bars.length - 1];
    if (last && last.worker === holder.worker && from - last.until < CLOSE_PX) last.until = Math.max(last.until, until);
    else bars.push({ worker: holder.worker, from, until });
  }
  return bars;
}

/** The visible folds. @param {Scale} scale @param {Window} window */
function visibleFolds(scale, window) {
  const folds = [];
  for (let index = segmentAt(scale.segments, window.start, "v0"); index < scale.segments.length; index += 1) {
    const segment = scale.segments[index];
    if (segment.v0 > window.end) break;
    if (segment.fold) folds.push(segment);
  }
  return folds;
}

/** Labels that do not overlap: folds first. @param {{x: number, label: string, fold: boolean, anchor: string}[]} labels @param {number} width */
function spaced(labels, width) {
  /** @type {[number, number][]} */
  const taken = [];
  const kept = [];
  for (const label of [...labels].sort((a, b) => Number(b.fold) - Number(a.fold) || a.x - b.x)) {
    const size = label.label.length * CHARACTER + 6;
    const left = label.anchor === "middle" ? label.x - size / 2 : label.x;
    if (left < -2 || left + size > width + 30 || taken.some(([from, until]) => left < until && left + size > from)) continue;
    taken.push([left, left + size]);
    kept.push(label);
  }
  return kept;
}

/** @param {number} t @param {boolean} first @param {number} msPerPx */
function tickLabel(t, first, msPerPx) {
  if (msPerPx < 3) return first ? clockMs(t) : `.${String(Math.floor(t) % 1000).padStart(3, "0")}`;
  if (first || msPerPx > 600) return msPerPx > 60_000 ? clock(t).slice(0, 5) : clock(t);
  return clock(t).slice(5);
}

/**
 * @param {{scale: Scale, window: Window, width: number, x: (t: number) => number, now: number | null, timeline: Timeline, end: number, nameWidth: number}} props
 */
export function Axis({ scale, window, width, x, now, timeline, end, nameWidth }) {
  const folds = visibleFolds(scale, window);
  const msPerPx = (window.end - window.start) / width;
  const labels = ticks(scale, window, width, 62).map((tick) => ({ x: tick.x + 3, label: tickLabel(tick.t, tick.first, msPerPx), fold: false, anchor: "start" }));
  if (folds.length <= MOST_WAVES) {
    for (const fold of folds) labels.push({ x: (x(fold.from) + x(fold.until)) / 2, label: `${duration(fold.until - fold.from)}${fold.future ? " left" : ""}`, fold: true, anchor: "middle" });
  }
  const nowX = now === null ? null : x(now);
  return html`<div class="axis-row"><div class="w-name held-label" style=${{ width: `${nameWidth}px` }}>held by</div><svg width=${width} height="58" role="img" aria-label=${`time axis; held by ${[...new Set(timeline.holders.map((holder) => holder.worker))].filter(Boolean).map((worker) => shortWorker(String(worker))).join(", ") || "nobody"}`}>
    ${spaced(labels, width).map((label) => html`<text class=${label.fold ? "fold-label" : "tick-label"} x=${label.x} y="26" text-anchor=${label.anchor}>${label.label}</text>`)}
    ${joined(timeline.holders, x, end).map((holder) => {
      const { from, until } = holder;
      if (until < 0 || from > width) return null;
      const wide = Math.max(2, until - from);
      return html`<rect class="holder" x=${from} y="38" width=${wide} height="14" rx="2" />${wide > 62 && holder.worker ? html`<text class="holder-name" x=${Math.max(from, 0) + 6} y="48.5">${shortWorker(holder.worker)}</text>` : null}`;
    })}
    ${gapsOf(timeline, end).map((gap) => {
      const [from, until] = [x(gap.from), x(gap.until)];
      if (until < 0 || from > width) return null;
      return html`<rect class="lost-gap" x=${from + 0.5} y="38.5" width=${Math.max(3, until - from - 1)} height="13" rx="2"><title>${`lost by ${gap.lostBy}, taken over after ${duration(gap.until - gap.from)}`}</title></rect>${until - from > 26 ? html`<text class="lost-name" x=${(from + until) / 2} y="48.5" text-anchor="middle">lost</text>` : null}`;
    })}
    ${nowX === null || nowX < 0 || nowX > width ? null : html`<g transform=${`translate(${Math.min(nowX, width - 14)} 0)`}><rect class="now-pill" x="-15" y="0" width="30" height="14" rx="7" /><text class="now-word" x="0" y="10.5" text-anchor="middle">now</text></g>`}
  </svg></div>`;
}

/** A wavy vertical line. @param {number} height */
function wave(height) {
  let path = "M0 0";
  for (let y = 0; y < height; y += 16) path += "q3 4 0 8t0 8";
  return path;
}

/**
 * @param {{scale: Scale, window: Window, width: number, height: number, x: (t: number) => number, now: number | null, nameWidth: number}} props
 */
export function Backdrop({ scale, window, width, height, x, now, nameWidth }) {
  const folds = visibleFolds(scale, window);
  const tall = Math.min(height, 2400);
  const edge = folds.length <= MOST_WAVES ? wave(tall) : null;
  const nowX = now === null ? null : x(now);
  return html`<svg width=${width} height=${tall} style=${{ left: `${nameWidth}px` }}>
    ${folds.slice(0, 1000).map((fold) => html`<rect class="fold-band" x=${x(fold.from)} y="0" width=${Math.max(1, x(fold.until) - x(fold.from))} height=${tall} />`)}
    ${ticks(scale, window, width).map((tick) => html`<line class="grid" x1=${tick.x} x2=${tick.x} y1="0" y2=${tall} />`)}
    ${edge ? folds.map((fold) => html`<path class="wave" d=${edge} transform=${`translate(${x(fold.from)} 0)`} />${fold.future ? null : html`<path class="wave" d=${edge} transform=${`translate(${x(fold.until)} 0)`} />`}`) : null}
    ${nowX === null || nowX < 0 || nowX > width ? null : html`<line class="now-line" x1=${nowX} x2=${nowX} y1="0" y2=${tall} />`}</svg>`;
}
