/** Text for numbers, times and durations. Absent values are an en dash. */
import { preferences } from "./prefs.js";

export const NONE = "–";

const grouped = new Intl.NumberFormat("en-US");

/** @param {number | null | undefined} value */
export function number(value) {
  return value == null ? NONE : grouped.format(value);
}

/**
 * Text of a rate: `46`, `3.2`, `<1`.
 * @param {number} perMinute
 */
export function rate(perMinute) {
  if (perMinute === 0) return "0";
  if (perMinute < 0.1) return "<0.1";
  return perMinute < 10 ? String(Math.round(perMinute * 10) / 10) : number(Math.round(perMinute));
}

/** @param {number} value @param {number} digits */
const fixed = (value, digits) => String(Number(value.toFixed(digits)));

const UNITS = /** @type {const} */ ([["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]);

/**
 * A duration of at most two units: `640 ms`, `2.24 s`, `42.5 s`, `4 min 12 s`, `6 d 21 h`.
 * @param {number | null | undefined} ms
 */
export function duration(ms) {
  if (ms == null || Number.isNaN(ms)) return NONE;
  if (ms < 0) return "0 ms";
  if (ms < 1) return ms === 0 ? "0 ms" : "<1 ms";
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 9995) return `${fixed(ms / 1000, 2)} s`;
  if (ms < 59_950) return `${fixed(ms / 1000, 1)} s`;
  return longDuration(Math.round(ms / 1000));
}

/** @param {number} seconds 60 or more */
function longDuration(seconds) {
  const index = UNITS.findIndex(([, size]) => seconds >= size);
  const [unit, size] = UNITS[index];
  const [nextUnit, nextSize] = UNITS[index + 1];
  const count = Math.floor(seconds / size);
  const rest = Math.floor((seconds - count * size) / nextSize);
  return rest ? `${count} ${unit} ${rest} ${nextUnit}` : `${count} ${unit}`;
}

/**
 * A countdown or an age in whole seconds: it changes once a second at most.
 * @param {number} ms
 */
export function ticking(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  return seconds < 60 ? `${seconds} s` : longDuration(seconds);
}

/**
 * An age of one unit, for columns: `3 s`, `41 min`, `2 h`.
 * @param {number} ms
 */
export function age(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  const [unit, size] = UNITS.find(([, unitSize]) => seconds >= unitSize) ?? ["s", 1];
  return `${Math.floor(seconds / size)} ${unit}`;
}

const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
/** @param {number} value */
const two = (value) => String(value).padStart(2, "0");

/**
 * The fields of a moment in the chosen time zone.
 * @param {number} ms
 */
function fields(ms) {
  const date = new Date(ms);
  return preferences.get().zone === "utc"
    ? { year: date.getUTCFullYear(), month: date.getUTCMonth(), day: date.getUTCDate(), hour: date.getUTCHours(), minute: date.getUTCMinutes(), second: date.getUTCSeconds() }
    : { year: date.getFullYear(), month: date.getMonth(), day: date.getDate(), hour: date.getHours(), minute: date.getMinutes(), second: date.getSeconds() };
}

export function zoneLabel() {
  return preferences.get().zone === "utc" ? "UTC" : "local";
}

/** @param {number} ms */
export function clock(ms) {
  const at = fields(ms);
  return `${two(at.hour)}:${two(at.minute)}:${two(at.second)}`;
}

/** @param {number} ms */
export function clockMinutes(ms) {
  return clock(ms).slice(0, 5);
}

/** @param {number} ms */
export function clockMs(ms) {
  return `${clock(ms)}.${String(Math.floor(ms) % 1000).padStart(3, "0")}`;
}

/**
 * A moment: `14:32:07` today, else `17 Nov 11:59:12`, with the year if it is another one.
 * @param {string | number | null | undefined} value
 * @param {number} [now]
 */
export function moment(value, now = Date.now()) {
  if (value == null) return NONE;
  const ms = toMs(value);
  const at = fields(ms);
  const today = fields(now);
  if (at.year === today.year && at.month === today.month && at.day === today.day) return clock(ms);
  const year = at.year === today.year ? "" : ` ${at.year}`;
  return `${day(ms)}${year} ${clock(ms)}`;
}

/** The day of a moment: `17 Nov`. @param {number} ms */
export function day(ms) {
  const at = fields(ms);
  return `${at.day} ${MONTHS[at.month]}`;
}

/** @param {string | number} value */
export function toMs(value) {
  return typeof value === "number" ? value : Date.parse(value);
}

/** @param {string | number | null | undefined} value */
export function iso(value) {
  if (value == null) return "";
  const ms = toMs(value);
  return Number.isNaN(ms) ? "" : new Date(ms).toISOString();
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1e6 ? `${fixed(bytes / 1000, 1)} KB` : `${fixed(bytes / 1e6, 1)} MB`;
}

/** @param {number} count @param {string} one @param {string} [many] */
export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}
