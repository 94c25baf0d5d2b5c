/**
 * The state of the page in the fragment of its URL: `#/run/fulfil/o-1?tab=code`. The server never sees a fragment, so
 * the dashboard works below any prefix, and links can be shared.
 */
import { createStore } from "./store.js";

/** @typedef {{path: string[], query: URLSearchParams, text: string}} Route */
/** @typedef {Record<string, string | number | boolean | null | undefined>} QueryChange */

/** @returns {Route} */
function read() {
  const text = location.hash.replace(/^#\/?/, "");
  const [path, query = ""] = text.split(/\?(.*)/s);
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query), text };
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = createStore(read());

addEventListener("hashchange", () => route.set(read()));

/**
 * @param {string[]} path
 * @param {QueryChange | URLSearchParams | string} [query]
 */
export function href(path, query = "") {
  const text = typeof query === "string" ? query : toQuery(query).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** @param {QueryChange | URLSearchParams} values */
function toQuery(values) {
  if (values instanceof URLSearchParams) return values;
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    if (value != null && value !== "" && value !== false) query.set(key, String(value));
  }
  return query;
}

/**
 * @param {string} target as `href` makes it
 * @param {{replace?: boolean}} [options]
 */
export function go(target, { replace = false } = {}) {
  if (target === location.hash) return;
  if (replace) history.replaceState(null, "", target);
  else history.pushState(null, "", target);
  route.set(read());
}

/**
 * Change single values of the query. `null`, `""` and `false` remove a value.
 * @param {QueryChange} change
 * @param {{replace?: boolean}} [options]
 */
export function setQuery(change, { replace = true } = {}) {
  const { path, query } = read(); // `route` is behind until the event of a changed fragment
  const next = new URLSearchParams(query);
  for (const [key, value] of Object.entries(change)) {
    if (value == null || value === "" || value === false) next.delete(key);
    else next.set(key, String(value));
  }
  go(href(path, next), { replace });
}

/** @param {string} pid `workflow/id` */
export function splitPid(pid) {
  const slash = pid.lastIndexOf("/");
  return { workflow: pid.slice(0, slash), id: pid.slice(slash + 1) };
}

/** @param {string} workflow @param {string} id @param {QueryChange} [query] */
export function runHref(workflow, id, query = {}) {
  return href(["run", workflow, id], query);
}
