/**
 * Keyboard shortcuts. A key goes first to the component that was shown last; a handler that returns `false` passes it on.
 * A dialog passes no key on to the page below.
 */
import { preferences } from "./prefs.js";
import { useLayoutEffect, useRef } from "./view.js";

/** @typedef {Record<string, (event: KeyboardEvent) => boolean | void>} KeyMap */

/** @type {{current: KeyMap, modal: boolean}[]} */
const layers = [];

/** @param {EventTarget | null} target */
function isTyping(target) {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || ["TEXTAREA", "SELECT"].includes(target.tagName)
    || (target instanceof HTMLInputElement && !["checkbox", "radio", "button", "range"].includes(target.type));
}

/** @param {KeyboardEvent} event */
function nameOf(event) {
  const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  return event.ctrlKey || event.metaKey ? `Ctrl+${name}` : name;
}

addEventListener("keydown", (event) => {
  if (event.altKey || event.isComposing || event.defaultPrevented) return;
  const name = nameOf(event);
  const typing = isTyping(event.target);
  if (typing && name !== "Escape" && !name.startsWith("Ctrl+")) return;
  if (name.length === 1 && !preferences.get().keys) return;
  const pressable = event.target instanceof HTMLElement && event.target.closest("button, a, [role=button], input, summary");
  if (pressable && (name === "Enter" || name === " ")) return;
  for (let index = layers.length - 1; index >= 0; index -= 1) {
    const handler = layers[index].current[name];
    if (handler && handler(event) !== false) {
      event.preventDefault();
      return;
    }
    if (layers[index].modal) return;
  }
});

/** @param {KeyMap} map @param {boolean} [modal] */
export function useKeys(map, modal = false) {
  const { current: layer } = useRef({ current: map, modal });
  layer.current = map;
  useLayoutEffect(() => {
    layers.push(layer);
    return () => {
      layers.splice(layers.indexOf(layer), 1);
    };
  }, []);
}
