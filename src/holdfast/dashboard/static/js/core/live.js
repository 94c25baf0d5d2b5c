/**
 * The stream of server-sent events of a page. The browser reconnects after a lost connection, this module after a
 * refused one. `connection` has the state of the stream, and the time of the last data.
 */
import { createStore } from "./store.js";
import { apiUrl, loadMe, serverNow, setServerTime } from "./api.js";
import { usePolling } from "./resource.js";
import { useEffect, useRef } from "./view.js";

/** @typedef {{state: "live" | "reconnecting" | "idle", asOf: number}} Connection */

export const connection = createStore(/** @type {Connection} */ ({ state: "idle", asOf: serverNow() }));

const FIRST_DELAY = 500;
const LONGEST_DELAY = 8000;

/**
 * @param {Record<string, unknown> | URLSearchParams} query with `topic`
 * @param {Record<string, (data: any) => void>} handlers by the name of the event; `open` after each (re)connection
 * @returns {() => void} closes the stream
 */
export function openLive(query, handlers) {
  const url = apiUrl("_live", query);
  /** @type {EventSource | undefined} */
  let source;
  let closed = false;
  let delay = FIRST_DELAY;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  function alive() {
    delay = FIRST_DELAY;
    connection.set({ state: "live", asOf: serverNow() });
  }

  function lost() {
    const before = connection.get();
    if (before.state !== "reconnecting") connection.set({ state: "reconnecting", asOf: before.state === "live" ? before.asOf : serverNow() });
  }

  async function retry() {
    source?.close();
    lost();
    timer = setTimeout(connect, delay);
    delay = Math.min(delay * 2, LONGEST_DELAY);
  }

  function connect() {
    if (closed) return;
    source = new EventSource(url);
    let opened = false;
    source.onopen = () => {
      alive();
      handlers.open?.(opened);
      opened = true;
    };
    source.onerror = () => {
      if (source?.readyState === EventSource.CLOSED) void retry();
      else lost();
    };
    source.addEventListener("end", () => {
      void loadMe().catch(() => undefined); // a session that ended leads to the sign-in page
      void retry();
    });
    for (const name of Object.keys(handlers)) {
      if (name === "open") continue;
      source.addEventListener(name, (event) => {
        const data = JSON.parse(event.data);
        if (data.now) setServerTime(data.now);
        alive();
        handlers[name](data);
      });
    }
  }

  connect();
  return () => {
    closed = true;
    clearTimeout(timer);
    source?.close();
    if (connection.get().state === "reconnecting") connection.set({ state: "idle", asOf: serverNow() });
  };
}

/**
 * Keep a stream open while the component is shown. A change of `key` opens another one.
 * @param {string | null} key the query of the stream as text; `null` opens none
 * @param {Record<string, (data: any) => void>} handlers
 * @param {number} [turn] another number opens the stream again
 */
export function useLive(key, handlers, turn = 0) {
  const latest = useRef(handlers);
  latest.current = handlers;
  useEffect(() => {
    if (key === null) return undefined;
    /** @type {Record<string, (data: any) => void>} */
    const stable = {};
    for (const name of Object.keys(handlers)) stable[name] = (data) => latest.current[name]?.(data);
    return openLive(new URLSearchParams(key), stable);
  }, [key, turn]);
}

const FALLBACK_MS = 3000;

/**
 * Load the data of a page every few seconds while its stream is interrupted: some proxies pass requests, but no streams.
 * @param {() => void} refresh
 */
export function useFallback(refresh) {
  usePolling(() => {
    if (connection.get().state !== "live") refresh();
  }, FALLBACK_MS);
}
