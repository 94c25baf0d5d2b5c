/** Charts as SVG. Lengths are SVG attributes, because the content security policy forbids style attributes. */
import { clockMinutes, day, number } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/view.js";
import { text } from "./text.js";

/** The windows of a series, with their words. */
export const WINDOWS = /** @type {[string, string][]} */ ([["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"], ["7d", "7 d"]]);

/**
 * The width of an element; a change renders again.
 * @param {number} initial
 * @returns {[{current: any}, number]}
 */
export function useWidth(initial) {
  const element = useRef(/** @type {any} */ (null));
  const [width, setWidth] = useState(initial);
  useEffect(() => {
    if (!element.current) return undefined;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(40, Math.round(entry.contentRect.width))));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

/** @param {number[]} values */
const highest = (values) => values.reduce((most, value) => Math.max(most, value), 0);

/**
 * Bars of equal width; `errors` are red marks at the bottom.
 * @param {{values: number[], errors?: number[], width?: number, height?: number, state?: string, label?: string}} props
 */
export function Spark({ values, errors, width = 66, height = 14, state = "", label }) {
  const top = highest(values) || 1;
  const step = width / Math.max(1, values.length);
  return html`<svg class=${`spark ${state ? `s-${state}` : ""}`} width=${width} height=${height} role="img" aria-label=${label ?? `trend, highest ${number(top)}`}>
    ${values.map((value, index) => {
      const tall = value === 0 ? 1 : Math.max(2, (value / top) * height);
      return html`<rect x=${index * step} y=${height - tall} width=${Math.max(1, step - 1)} height=${tall} class=${value === 0 ? "none" : ""} />`;
    })}
    ${errors?.map((value, index) => (value ? html`<rect class="bad" x=${index * step} y=${height - 2} width=${Math.max(1, step - 1)} height="2" />` : null))}</svg>`;
}

/** @param {number} value the top of an axis: 1, 2, 3 or 5 times a power of ten */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return (([1, 2, 3, 5, 10].find((factor) => factor * power >= value)) ?? 10) * power;
}

/** The time of a bucket on an axis. @param {Series} series @param {number} index */
function timeOf(series, index) {
  return (series.stepMs > 36e5 ? day : clockMinutes)(series.from + index * series.stepMs);
}

/** @typedef {{from: number, stepMs: number, started: number[], complete: number[], errored: number[], versions: {version: string, at: string}[]}} Series */

/** Runs per bucket of time: complete as bars, started as a line that ends before the last, unfinished bucket, errored below on a scale of its own. @param {{series: Series}} props */
export function RunsChart({ series }) {
  const [element, width] = useWidth(800);
  const [high, gap, low] = [124, 22, 24];
  const plot = width - 44;
  const count = Math.max(1, series.started.length);
  const step = plot / count;
  const top = niceTop(Math.max(highest(series.started), highest(series.complete)));
  const worst = Math.max(1, highest(series.errored));
  const bottom = high + gap + low;
  const y = (/** @type {number} */ value) => high - (value / top) * (high - 16);
  const line = series.started.slice(0, -1).map((value, index) => `${index ? "L" : "M"}${(index + 0.5) * step} ${y(value)}`).join("");
  const marks = series.versions.map((version) => ({ version: version.version, x: ((Date.parse(version.at) - series.from) / series.stepMs) * step })).filter((mark) => mark.x > 1 && mark.x < plot);
  const every = Math.max(1, Math.ceil(count / 6));
  return html`<div ref=${element} class="chart"><svg width=${width} height=${bottom + 20} role="img" aria-label=${`started, completed and errored runs; highest ${number(top)} in one bucket`}>
    ${(top % 3 === 0 ? [1 / 3, 2 / 3, 1] : [1 / 2, 1]).map((share) => html`<line class="grid" x1="0" x2=${plot} y1=${y(top * share)} y2=${y(top * share)} /><text x=${plot + 8} y=${y(top * share) + 4}>${number(Math.round(top * share))}</text>`)}
    ${series.complete.map((value, index) => html`<rect class="complete" x=${index * step} y=${y(value)} width=${Math.max(1, step - 1)} height=${Math.max(0, high - y(value))} />`)}
    <line class="axis" x1="0" x2=${plot} y1=${high} y2=${high} /><path class="started" d=${line} />
    ${series.errored.map((value, index) => (value ? html`<rect class="errored" x=${index * step} y=${bottom - (value / worst) * low} width=${Math.max(1, step - 1)} height=${(value / worst) * low} />` : null))}
    <line class="axis" x1="0" x2=${plot} y1=${bottom} y2=${bottom} /><text x=${plot + 8} y=${bottom - low + 8}>${number(worst)}</text><text x=${plot + 8} y=${bottom}>0</text>
    ${series.started.map((_, index) => (index % every === 0 && index < count - every / 2 ? html`<text x=${index * step} y=${bottom + 15}>${timeOf(series, index)}</text>` : null))}
    <text x=${plot} y=${bottom + 15} text-anchor="end">now</text>
    ${marks.slice(-3).map((mark, index, shown) => html`<line class="release" x1=${mark.x} x2=${mark.x} y1="14" y2=${bottom} />${index + 1 < shown.length && shown[index + 1].x - mark.x < 160 ? null : html`<text class="release-name" x=${Math.min(mark.x, plot - 140)} y="9">version ${text(mark.version, 24)}</text>`}`)}
  </svg></div>`;
}

/** Runs of a filter by the time of their creation, stacked by outcome. @param {{series: Series & Record<string, any>}} props */
export function HistogramStrip({ series }) {
  const [element, width] = useWidth(1200);
  const height = 40;
  const count = Math.max(1, series.started.length);
  const step = width / count;
  const open = series.started.map((value, index) => Math.max(0, value - series.complete[index] - series.errored[index]));
  const top = highest(series.started.map((_, index) => open[index] + series.complete[index] + series.errored[index])) || 1;
  const every = Math.max(1, Math.ceil(count / 6));
  const scale = height / top;
  return html`<div ref=${element} class="chart"><svg width=${width} height=${height + 18} role="img" aria-label="runs over time">
    ${series.started.map((_, index) => {
      const parts = [["errored", series.errored[index]], ["open", open[index]], ["complete", series.complete[index]]];
      let base = height;
      return parts.map(([kind, value]) => {
        base -= Number(value) * scale;
        return value ? html`<rect class=${kind} x=${index * step} y=${base} width=${Math.max(1, step - 1)} height=${Number(value) * scale} /> ` : null;
      });
    })}
    <line class="grid" x1="0" x2=${width} y1=${height} y2=${height} />
    ${series.started.map((_, index) => (index % every === 0 && index < count - 2 ? html`<text x=${index * step} y=${height + 13}>${timeOf(series, index)}</text>` : null))}
    <text x=${width} y=${height + 13} text-anchor="end">now</text></svg></div>`;
}
