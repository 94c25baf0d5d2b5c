/** Zoom and pan of the waterfall by wheel, drag and pinch. A plain wheel scrolls the rows. */
import { useEffect, useRef } from "../core/view.js";
import { panned, zoomed } from "./scale.js";

/** @typedef {import("./scale.js").Window} Window */
/** @typedef {{nameWidth: number, width: number, window: Window, total: number, setWindow: (window: Window) => void}} Geometry */

const DRAG_THRESHOLD = 4;

/**
 * @param {{current: HTMLElement | null}} element
 * @param {Geometry} geometry
 */
export function useGestures(element, geometry) {
  const latest = useRef(geometry);
  latest.current = geometry;
  const pointers = useRef(/** @type {Map<number, {x: number, y: number}>} */ (new Map()));
  const dragged = useRef(false);

  /** @param {number} clientX */
  function anchorOf(clientX) {
    const left = element.current?.getBoundingClientRect().left ?? 0;
    return Math.max(0, Math.min(1, (clientX - left - latest.current.nameWidth) / latest.current.width));
  }

  useEffect(() => {
    const node = element.current;
    if (!node) return undefined;
    /** @param {WheelEvent} event */
    const wheel = (event) => {
      const { window, total, setWindow, width } = latest.current;
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (event.ctrlKey || event.metaKey) setWindow(zoomed(window, total, Math.exp(Math.max(-50, Math.min(50, event.deltaY)) * 0.01), anchorOf(event.clientX)));
      else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) setWindow(panned(window, total, sideways / width));
      else return;
      event.preventDefault();
    };
    node.addEventListener("wheel", wheel, { passive: false });
    return () => node.removeEventListener("wheel", wheel);
  }, []);

  return {
    /** @param {PointerEvent} event */
    onPointerDown(event) {
      if (event.button !== 0 || anchorOf(event.clientX) <= 0) return;
      pointers.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
      dragged.current = false;
    },
    /** @param {PointerEvent} event */
    onPointerMove(event) {
      const before = pointers.current.get(event.pointerId);
      if (!before) return;
      const { window, total, setWindow, width } = latest.current;
      const others = [...pointers.current.entries()].filter(([id]) => id !== event.pointerId);
      if (others.length === 1) {
        const other = others[0][1];
        const old = Math.max(10, Math.abs(before.x - other.x));
        const fresh = Math.max(10, Math.abs(event.clientX - other.x));
        setWindow(zoomed(window, total, old / fresh, anchorOf((event.clientX + other.x) / 2)));
      } else if (dragged.current || Math.abs(event.clientX - before.x) > DRAG_THRESHOLD) {
        dragged.current = true;
        setWindow(panned(window, total, (before.x - event.clientX) / width));
      } else return;
      pointers.current.set(event.pointerId, { x: event.clientX, y: event.clientY });
    },
    /** @param {PointerEvent} event */
    onPointerUp: (event) => pointers.current.delete(event.pointerId),
    /** @param {PointerEvent} event */
    onPointerCancel: (event) => pointers.current.delete(event.pointerId),
    /** @param {PointerEvent} event */
    onPointerLeave: (event) => pointers.current.delete(event.pointerId),
    /** @param {MouseEvent} event a drag is no click on a row */
    onClickCapture(event) {
      if (dragged.current) event.stopPropagation();
      dragged.current = false;
    },
    /** @param {MouseEvent} event */
    onDblClick(event) {
      const { window, total, setWindow } = latest.current;
      if (anchorOf(event.clientX) > 0) setWindow(zoomed(window, total, 0.4, anchorOf(event.clientX)));
    },
  };
}
