/**
 * The scale of time of a run. Work has one linear scale; idle gaps are folded to bands of equal width. Positions are
 * virtual milliseconds: a millisecond of work is 1, a folded gap is `foldWidth`.
 */

/** @typedef {{from: number, until: number, v0: number, v1: number, fold: boolean, future: boolean}} Segment */
/** @typedef {{segments: Segment[], total: number, workMs: number, folds: number, from: number, until: number}} Scale */

const FOLD_PX = 44;
const MOST_FOLDED = 0.6; // share of the width that folds may take
const SHORTEST_FOLD_SHARE = 0.1; // of the work; shorter gaps stay
const SHORTEST_FOLD_MS = 50;
const LEAST_WORK_SHARE = 0.02;

/**
 * Merge overlapping intervals.
 * @param {[number, number][]} intervals
 * @returns {[number, number][]}
 */
export function mergeIntervals(intervals) {
  const sorted = [...intervals].sort((a, b) => a[0] - b[0]);
  /** @type {[number, number][]} */
  const merged = [];
  for (const [from, until] of sorted) {
    const last = merged[merged.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], until);
    else merged.push([from, Math.max(from, until)]);
  }
  return merged;
}

/**
 * @param {{from: number, now: number, until: number, work: [number, number][], width: number, folded: boolean}} options
 *   `now`: the end of the run, or the present time; `until`: the deadline it waits for, or `now`
 * @returns {Scale}
 */
export function makeScale({ from, now, until, work, width, folded }) {
  const end = Math.max(now, from + 1);
  const merged = mergeIntervals(work.map(([start, stop]) => [Math.max(from, Math.min(start, end)), Math.max(from, Math.min(stop, end))]));
  const workMs = merged.reduce((sum, [start, stop]) => sum + stop - start, 0);
  // Steps of less than a millisecond have a width, or a run of such steps would be all folds.
  const least = Math.max(1, Math.min(workMs * LEAST_WORK_SHARE, workMs / Math.max(1, merged.length)));
  const shown = merged.map(([start, stop]) => /** @type {[number, number]} */ ([start, Math.min(end, Math.max(stop, start + least))]));
  const shortest = Math.max(SHORTEST_FOLD_MS, workMs * SHORTEST_FOLD_SHARE);
  const pieces = folded && merged.length ? cutAtGaps(from, end, shown, shortest) : [{ from, until: end, fold: false, future: false }];
  if (until > end) pieces.push({ from: end, until, fold: folded, future: true });
  return place(pieces, width, workMs, from, Math.max(until, end));
}

/** @typedef {{from: number, until: number, fold: boolean, future: boolean}} Piece */

/** @param {number} from @param {number} end @param {[number, number][]} merged @param {number} shortest @returns {Piece[]} */
function cutAtGaps(from, end, merged, shortest) {
  /** @type {Piece[]} */
  const pieces = [];
  let at = from;
  let linearFrom = from;
  for (const [start, stop] of [...merged, /** @type {[number, number]} */ ([end, end])]) {
    if (start - at >= shortest) {
      if (at > linearFrom) pieces.push({ from: linearFrom, until: at, fold: false, future: false });
      pieces.push({ from: at, until: start, fold: true, future: false });
      linearFrom = start;
    }
    at = Math.max(at, stop);
  }
  if (end > linearFrom || pieces.length === 0) pieces.push({ from: linearFrom, until: Math.max(end, linearFrom + 1), fold: false, future: false });
  return pieces;
}

/** @param {Piece[]} pieces @param {number} width @param {number} workMs @param {number} from @param {number} until @returns {Scale} */
function place(pieces, width, workMs, from, until) {
  const folds = pieces.filter((piece) => piece.fold).length;
  const linear = pieces.reduce((sum, piece) => sum + (piece.fold ? 0 : piece.until - piece.from), 0) || 1;
  const foldPx = folds ? Math.min(FOLD_PX, (width * MOST_FOLDED) / folds) : 0;
  const foldWidth = folds ? (foldPx * linear) / Math.max(1, width - folds * foldPx) : 0;
  let v = 0;
  const segments = pieces.map((piece) => {
    const v0 = v;
    v += piece.fold ? foldWidth : piece.until - piece.from;
    return { ...piece, v0, v1: v };
  });
  return { segments, total: v || 1, workMs, folds, from, until };
}

/**
 * The index of the last segment that begins at or before the value.
 * @param {Segment[]} segments
 * @param {number} value
 * @param {"from" | "v0"} field
 */
export function segmentAt(segments, value, field) {
  let low = 0;
  let high = segments.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (segments[middle][field] <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The virtual position of a moment. @param {Scale} scale @param {number} t */
export function toVirtual(scale, t) {
  const segment = scale.segments[segmentAt(scale.segments, t, "from")];
  const share = (Math.min(Math.max(t, segment.from), segment.until) - segment.from) / Math.max(1e-9, segment.until - segment.from);
  return segment.v0 + share * (segment.v1 - segment.v0);
}

/** The moment at a virtual position. @param {Scale} scale @param {number} v */
export function toTime(scale, v) {
  const segment = scale.segments[segmentAt(scale.segments, v, "v0")];
  const share = (Math.min(Math.max(v, segment.v0), segment.v1) - segment.v0) / Math.max(1e-9, segment.v1 - segment.v0);
  return segment.from + share * (segment.until - segment.from);
}

/** @typedef {{start: number, end: number}} Window visible part, in virtual milliseconds */

/**
 * Zoom by a factor around a position of the window (0: left, 1: right).
 * @param {Window} window
 * @param {number} total
 * @param {number} factor
 * @param {number} anchor
 * @returns {Window}
 */
export function zoomed({ start, end }, total, factor, anchor) {
  const size = Math.min(total, Math.max(total / 1e6, 0.5, (end - start) * factor));
  const centre = start + (end - start) * anchor;
  return clamp({ start: centre - size * anchor, end: centre + size * (1 - anchor) }, total);
}

/** @param {Window} window @param {number} total @param {number} by share of the window */
export function panned({ start, end }, total, by) {
  const shift = (end - start) * by;
  return clamp({ start: start + shift, end: end + shift }, total);
}

/** @param {Window} window @param {number} total @returns {Window} */
function clamp({ start, end }, total) {
  const size = Math.min(total, end - start);
  const left = Math.max(0, Math.min(start, total - size));
  return { start: left, end: left + size };
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1.5e4, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];

/**
 * Ticks of the axis in the visible window.
 * @param {Scale} scale
 * @param {Window} window
 * @param {number} width
 * @param {number} [distance] smallest distance of two ticks in pixels
 * @returns {{t: number, x: number, first: boolean}[]}
 */
export function ticks(scale, window, width, distance = 36) {
  const px = width / (window.end - window.start);
  /** @type {{t: number, x: number, first: boolean}[]} */
  const found = [];
  const begin = segmentAt(scale.segments, window.start, "v0");
  for (let index = begin; index < scale.segments.length && found.length < 200; index += 1) {
    const segment = scale.segments[index];
    if (segment.v0 > window.end) break;
    if (segment.fold) continue;
    const step = STEPS.find((each) => each * px >= distance) ?? STEPS[STEPS.length - 1];
    const x0 = (segment.v0 - window.start) * px;
    if (x0 >= 0) found.push({ t: segment.from, x: x0, first: true });
    const lowest = segment.from + Math.max(0, (window.start - segment.v0));
    for (let t = Math.ceil(lowest / step) * step; t < segment.until && found.length < 200; t += step) {
      const x = (segment.v0 + t - segment.from - window.start) * px;
      if (x > width) break;
      if (x - x0 > distance / 2 || x0 < 0) found.push({ t, x, first: false });
    }
  }
  return found;
}
