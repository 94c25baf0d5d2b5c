/** Data of the server in a component. Old data stay until new data arrive. */
import { get, me } from "./api.js";
import { useEffect, useRef, useState } from "./view.js";

/**
 * @template T
 * @typedef {{data: T | undefined, error: any, slow: boolean, refresh: () => void, change: (update: (data: T) => T) => void}} Resource
 */

const SLOW_AFTER = 300;

/**
 * @template T
 * @param {string | null} key identifies the request; `null` requests nothing
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @returns {Resource<T>}
 */
export function useResource(key, load) {
  const [state, setState] = useState(/** @type {{data?: T, error?: any, slow: boolean, key: string | null}} */ ({ slow: false, key: null }));
  const latest = useRef(load);
  latest.current = load;
  const running = useRef(/** @type {AbortController | null} */ (null));
  const again = useRef(false);

  /** @param {boolean} waits true: a request under way is repeated after its end, and not interrupted */
  function start(waits) {
    if (key === null) return;
    if (waits && running.current) {
      again.current = true;
      return;
    }
    running.current?.abort();
    const controller = new AbortController();
    running.current = controller;
    const timer = setTimeout(() => setState((old) => ({ ...old, slow: true })), SLOW_AFTER);
    latest.current(controller.signal).then(
      (data) => finish({ data, slow: false, key }),
      (error) => finish({ error, slow: false, key }),
    );

    /** @param {{data?: T, error?: any, slow: boolean, key: string | null}} next */
    function finish(next) {
      clearTimeout(timer);
      if (controller.signal.aborted) return;
      running.current = null;
      setState((old) => (next.error === undefined ? next : { ...old, ...next }));
      if (again.current) {
        again.current = false;
        start(true);
      }
    }
  }

  useEffect(() => {
    if (key === null || me.get() === "signed-out") return undefined;
    again.current = false;
    start(false);
    return () => {
      running.current?.abort();
      running.current = null;
    };
  }, [key]);

  return {
    data: state.data,
    error: state.error,
    slow: state.slow,
    refresh: () => start(true),
    change: (update) => setState((old) => (old.data === undefined ? old : { ...old, data: update(old.data) })),
  };
}

/**
 * The response to a GET request. Another `turn` repeats the request.
 * @param {string | null} path `null` requests nothing
 * @param {Record<string, unknown>} [query]
 * @param {string | number | null} [turn]
 * @returns {Resource<any>}
 */
export function useGet(path, query = {}, turn = "") {
  return useResource(path === null ? null : `${path} ${JSON.stringify(query)} ${turn}`, (signal) => get(path ?? "", query, signal));
}

/**
 * The module that `loaders` load by `name`. A module that was wanted before and comes later does not replace it.
 * @template T
 * @param {Record<string, () => Promise<T>>} loaders
 * @param {string} name
 * @returns {{module?: T, failure?: any}} empty until the module is loaded
 */
export function useModule(loaders, name) {
  const [state, setState] = useState(/** @type {{name: string, module?: T, failure?: any}} */ ({ name: "" }));
  useEffect(() => {
    let wanted = true;
    loaders[name]().then((module) => wanted && setState({ name, module }), (failure) => wanted && setState({ name, failure }));
    return () => {
      wanted = false;
    };
  }, [name]);
  return state.name === name ? state : {};
}

/**
 * Call `refresh` every `ms` while the page is visible.
 * @param {() => void} refresh
 * @param {number} ms
 */
export function usePolling(refresh, ms) {
  const latest = useRef(refresh);
  latest.current = refresh;
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) latest.current();
    }, ms);
    return () => clearInterval(timer);
  }, [ms]);
}
