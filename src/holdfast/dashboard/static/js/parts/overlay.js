/** Overlays of a page: one dialog at a time, and toasts. */
import { announce } from "../core/announce.js";
import { useKeys } from "../core/keys.js";
import { createStore, useStore } from "../core/store.js";
import { html, useLayoutEffect, useRef, useState } from "../core/view.js";
import { Button } from "./basics.js";
import { Icon } from "./icons.js";
import { Glyph } from "./status.js";
import { text } from "./text.js";

/** @typedef {{component: unknown, props: Record<string, unknown>}} Overlay */
/** @typedef {{id: number, state: string, message: string, href?: string, link?: string}} Toast */

const overlay = createStore(/** @type {Overlay | null} */ (null));
const toasts = createStore(/** @type {Toast[]} */ ([]));
const TOAST_MS = 6000;
let lastToast = 0;

/** @param {unknown} component @param {Record<string, unknown>} [props] */
export function openOverlay(component, props = {}) {
  overlay.set({ component, props });
}

export function closeOverlay() {
  overlay.set(null);
}

addEventListener("hashchange", closeOverlay); // a sheet is about the page below it

/**
 * @param {string} message
 * @param {{state?: string, href?: string, link?: string}} [options]
 */
export function toast(message, { state = "complete", href, link } = {}) {
  lastToast += 1;
  const id = lastToast;
  toasts.set([...toasts.get().slice(-3), { id, state, message, href, link }]);
  announce(message);
  setTimeout(() => closeToast(id), state === "errored" ? 2 * TOAST_MS : TOAST_MS);
}

/** @param {number} id */
function closeToast(id) {
  toasts.set(toasts.get().filter((item) => item.id !== id));
}

/**
 * What a sheet sends: one request at a time, however often its button is pressed.
 * @param {() => Promise<unknown>} send
 */
export function useSubmit(send) {
  const running = useRef(false);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const submit = async () => {
    if (running.current) return;
    running.current = true;
    setBusy(true);
    setProblem(null);
    await send().catch(setProblem);
    running.current = false;
    setBusy(false);
  };
  return { submit, busy, problem };
}

/** The buttons of a sheet. @param {{label: string, disabled: boolean, onClick: () => void}} props */
export function SheetButtons({ label, disabled, onClick }) {
  return html`<footer><${Button} primary label=${label} hint="Ctrl ↵" disabled=${disabled} onClick=${onClick} /><${Button} quiet label="Close" hint="Esc" onClick=${closeOverlay} /></footer>`;
}

/**
 * A modal dialog. The browser keeps the focus inside, and restores it afterwards.
 * @param {{label: string, class?: string, children: any, onClose?: () => void}} props
 */
export function Dialog({ label, class: className = "sheet", children, onClose = closeOverlay }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useKeys({ Escape: onClose }, true);
  // A layout effect: keys pressed before a later effect would reach no field.
  useLayoutEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  /** @param {Event} event */
  const cancel = (event) => {
    event.preventDefault();
    onClose();
  };
  /** @param {MouseEvent} event */
  const click = (event) => {
    if (event.target === element.current) onClose();
  };
  return html`<dialog ref=${element} class=${className} aria-label=${label} onCancel=${cancel} onClick=${click}>${children}</dialog>`;
}

export function Overlays() {
  const current = useStore(overlay);
  const messages = useStore(toasts);
  return html`${current ? html`<${current.component} ...${current.props} />` : null}
    <div class="toasts">${messages.map((item) => html`<div class="toast" key=${item.id}>
      <${Glyph} state=${item.state} size=${18} /><span class="grow">${text(item.message, 400)}${item.href ? html` <a class="link" href=${item.href} onClick=${() => closeToast(item.id)}>${item.link}</a>` : null}</span>
      <button type="button" aria-label="Close the message" onClick=${() => closeToast(item.id)}><${Icon} name="close" /></button></div>`)}</div>`;
}
