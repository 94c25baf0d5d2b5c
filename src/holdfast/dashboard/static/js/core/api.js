/** Requests to the HTTP API: JSON in and out, errors as `ApiError`, the CSRF token on every write. */
import { createStore } from "./store.js";

export const API = new URL("_api/", document.baseURI);

/** @typedef {import("../types.d.ts").Me} Me */

/** The caller; `null` before the first reply, `"signed-out"` if the server needs a token. */
export const me = createStore(/** @type {Me | "signed-out" | null} */ (null));

export class ApiError extends Error {
  /**
   * @param {number} status 0: there was no response
   * @param {{message?: string, code?: string, issues?: {path: (string | number)[], message: string}[]}} body
   */
  constructor(status, body) {
    super(body.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = body.code ?? "";
    this.issues = body.issues ?? [];
  }
}

/**
 * @param {string} path below the API, its parts encoded
 * @param {Record<string, unknown> | URLSearchParams} [query]
 */
export function apiUrl(path, query) {
  const url = new URL(path, API);
  const entries = query instanceof URLSearchParams ? query : Object.entries(query ?? {});
  for (const [key, value] of entries) {
    if (value != null && value !== "") url.searchParams.append(key, String(value));
  }
  return url;
}

/** @param {string} workflow @param {string} id @param {string} [rest] */
export function instancePath(workflow, id, rest = "") {
  return `${encodeURIComponent(workflow)}/instances/${encodeURIComponent(id)}${rest ? `/${rest}` : ""}`;
}

/**
 * @param {string} method
 * @param {URL} url
 * @param {{body?: unknown, signal?: AbortSignal}} [options]
 * @returns {Promise<any>}
 */
async function request(method, url, { body, signal } = {}) {
  const csrf = caller()?.csrfToken;
  /** @type {Record<string, string>} */
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && csrf) headers["X-CSRF-Token"] = csrf;
  let response;
  try {
    response = await fetch(url, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { message: "The server does not answer", code: "OFFLINE" });
  }
  const content = await response.json().catch(() => ({}));
  if (response.ok) return content;
  if (response.status === 401 && !url.pathname.endsWith("/_session")) me.set("signed-out");
  throw new ApiError(response.status, content);
}

/** @param {string} path @param {Record<string, unknown> | URLSearchParams} [query] @param {AbortSignal} [signal] */
export const get = (path, query, signal) => request("GET", apiUrl(path, query), { signal });
/** @param {string} path @param {unknown} [body] */
export const post = (path, body = {}) => request("POST", apiUrl(path), { body });
/** @param {string} path @param {unknown} body */
export const put = (path, body) => request("PUT", apiUrl(path), { body });
/** @param {string} path @param {unknown} [body] */
export const remove = (path, body) => request("DELETE", apiUrl(path), { body });

/** Request the rights of the caller, and store them in `me`. */
export async function loadMe() {
  const answer = /** @type {Me} */ (await get("_me"));
  if (answer.now) setServerTime(answer.now);
  me.set(answer);
}

/** The signed-in caller, or null. */
export function caller() {
  const user = me.get();
  return user === "signed-out" ? null : user;
}

/** @param {string} scope */
export const may = (scope) => caller()?.actions.includes(scope) ?? false;

let offset = 0;

/** @param {string} now the server's time */
export function setServerTime(now) {
  offset = Date.parse(now) - Date.now();
}

/** The present time by the server's clock, in ms. */
export function serverNow() {
  return Date.now() + offset;
}
