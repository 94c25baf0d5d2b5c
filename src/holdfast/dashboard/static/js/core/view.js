/** The view library as the dashboard uses it: `html` templates and hooks. No other module imports from `vendor`. */
import { h, render } from "../../vendor/preact.js";
import htm from "../../vendor/htm.js";

export { render };
export {
  useCallback, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useRef, useState,
} from "../../vendor/hooks.js";

/** @typedef {import("../../vendor/preact.js").VNode} VNode */
/** @typedef {import("../../vendor/preact.js").Child} Child */

export const html = htm.bind(h);

/** A handler of input events that passes the text on. @param {(value: string) => void} set @returns {(event: any) => void} */
export const onText = (set) => (event) => set(event.target.value);
