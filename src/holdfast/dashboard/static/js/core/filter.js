/**
 * Filters of the list of runs as text: `workflow:fulfil tenant:acme since:1h o-2`. A word without a colon is a prefix
 * of the id; a key that is no condition of the list is a search attribute.
 */

/** @typedef {{key: string, value: string}} Condition */

/** @type {Record<string, string>} conditions, and their names in the query of the list */
const CONDITIONS = {
  workflow: "workflow", status: "status", error: "error", id: "idPrefix", version: "version", queue: "queue",
  since: "createdAfter", before: "createdBefore", ended: "endedAfter", endedbefore: "endedBefore",
};
const DATES = new Set(["since", "before", "ended", "endedbefore"]);
const UNITS = /** @type {Record<string, number>} */ ({ s: 1e3, m: 6e4, min: 6e4, h: 36e5, d: 864e5 });

export const KEYS = Object.keys(CONDITIONS).filter((key) => key !== "endedbefore");
export const STATUSES = ["active", "waiting", "paused", "complete", "errored", "cancelled", "terminated"];

/** @param {string} filter @returns {Condition[]} */
export function parseFilter(filter) {
  const words = filter.match(/[^\s":]+:"(?:[^"\\]|\\.)*"|\S+/g) ?? [];
  return words.map((word) => {
    const colon = word.indexOf(":");
    if (colon < 1) return { key: "id", value: word.replace(/^:/, "") };
    return { key: word.slice(0, colon), value: unquote(word.slice(colon + 1)) };
  }).filter((condition) => condition.value !== "");
}

/** @param {string} value */
function unquote(value) {
  if (!/^".*\s.*"$/.test(value)) return value; // quotes without a space say that a number is a text
  return value.slice(1, -1);
}

/** @param {Condition[]} conditions */
export function filterText(conditions) {
  return conditions.map(({ key, value }) => `${key}:${/\s/.test(value) ? `"${value}"` : value}`).join(" ");
}

/**
 * The moment of `1h` (an hour ago) or of a date; relative moments are whole minutes, so that a filter stays the same
 * request for a while.
 * @param {string} value
 * @param {number} now
 */
export function moment(value, now) {
  const match = /^(\d+)\s*(s|min|m|h|d)$/.exec(value);
  if (match) return new Date(Math.floor((now - Number(match[1]) * UNITS[match[2]]) / 6e4) * 6e4).toISOString();
  const at = Date.parse(/^\d{4}-\d\d-\d\d$/.test(value) ? `${value}T00:00:00Z` : value);
  return Number.isNaN(at) ? value : new Date(at).toISOString();
}

/**
 * The query of `GET _instances`.
 * @param {Condition[]} conditions
 * @param {number} now
 */
export function listQuery(conditions, now) {
  const query = new URLSearchParams();
  for (const { key, value } of conditions) {
    const name = key in {} ? "" : CONDITIONS[key.toLowerCase()];
    if (name) query.set(name, DATES.has(key.toLowerCase()) ? moment(value, now) : value);
    else query.set(`search.${key}`, value);
  }
  return query;
}

/**
 * The filter of `POST _bulk`.
 * @param {Condition[]} conditions
 * @param {number} now
 */
export function bulkFilter(conditions, now) {
  /** @type {Record<string, any>} */
  const filter = {};
  for (const [name, value] of listQuery(conditions, now)) {
    if (name.startsWith("search.")) (filter.search ??= {})[name.slice(7)] = searchValue(value);
    else filter[name] = value;
  }
  return filter;
}

/** A value for the API: a comparison is a pair; numbers and booleans are typed. @param {string} value */
function searchValue(value) {
  const match = /^(<=|>=|<|>)(.*)$/s.exec(value);
  const plain = literal(match ? match[2] : value);
  return match ? [match[1], plain] : plain;
}

/** @param {string} value */
function literal(value) {
  if (/^(true|false|-?\d+(\.\d+)?([eE][+-]?\d+)?|".*")$/s.test(value)) {
    try {
      return JSON.parse(value);
    } catch {
      return value;
    }
  }
  return value;
}

/**
 * Replace, add or remove the condition with this key.
 * @param {Condition[]} conditions
 * @param {string} key
 * @param {string | null} value
 */
export function withCondition(conditions, key, value) {
  const rest = conditions.filter((condition) => condition.key !== key);
  return value === null ? rest : [...rest, { key, value }];
}
