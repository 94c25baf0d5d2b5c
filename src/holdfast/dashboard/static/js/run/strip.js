/** The strip above the waterfall, in true time: the intervals of work, and the visible part. */
import { moment } from "../core/format.js";
import { html, useMemo, useRef } from "../core/view.js";
import { useWidth } from "../parts/charts.js";
import { mergeIntervals, toTime, toVirtual } from "./scale.js";

/** @typedef {import("./scale.js").Scale} Scale */
/** @typedef {import("./scale.js").Window} Window */

const MOST_MARKS = 600;

/**
 * @param {{scale: Scale, window: Window, work: [number, number][], now: number, items: import("./model.js").Item[], setWindow: (window: Window) => void}} props
 */
export function Strip({ scale, window, work, now, items, setWindow }) {
  const [element, width] = useWidth(900);
  const drag = useRef(/** @type {number | null} */ (null));
  const whole = Math.max(1, now - scale.from);
  /** @param {number} t */
  const x = (t) => ((t - scale.from) / whole) * width;
  const marks = useMemo(() => mergeIntervals(work.map(([from, until]) => [Math.floor(x(from)), Math.ceil(x(until)) + 2])).slice(0, MOST_MARKS), [work, width, whole]);
  const waits = useMemo(() => (items.length <= MOST_MARKS ? items.filter((item) => item.type === "waitForEvent" || item.type === "sleep") : []), [items]);
  const [left, right] = [x(toTime(scale, window.start)), Math.min(width - 1, x(toTime(scale, window.end)))];
  /** @param {PointerEvent} event */
  const timeOf = (event) => scale.from + (Math.max(0, Math.min(width, event.clientX - element.current.getBoundingClientRect().left)) / width) * whole;
  /** @param {PointerEvent} event */
  const select = (event) => {
    if (drag.current === null) return;
    const [a, b] = [toVirtual(scale, drag.current), toVirtual(scale, timeOf(event))];
    if (Math.abs(a - b) > scale.total / 500) setWindow({ start: Math.min(a, b), end: Math.max(a, b) });
  };
  return html`<div class="true-time"><span class="ink3">true time</span><div ref=${element} class="grow" onPointerDown=${(/** @type {PointerEvent} */ event) => { drag.current = timeOf(event); }} onPointerMove=${select} onPointerUp=${() => { drag.current = null; }} onPointerLeave=${() => { drag.current = null; }}>
    <svg width=${width} height="24" role="img" aria-label=${`true time from ${moment(scale.from)} to ${moment(now)}`}>
      <line class="rail" x1="0" x2=${x(now)} y1="12" y2="12" />${waits.map((item) => html`<line class=${item.type === "sleep" ? "slept" : "waited"} x1=${x(item.start)} x2=${x(item.end ?? now)} y1="12" y2="12" />`)}
      ${marks.map(([from, until]) => html`<rect class="worked" x=${from} y="5" width=${Math.max(2, until - from)} height="14" />`)}
      <rect class="view" x=${Math.max(0.75, left)} y="0.75" width=${Math.max(4, Math.min(width - 1.5, right - left))} height="22.5" rx="3" /></svg></div></div>`;
}
