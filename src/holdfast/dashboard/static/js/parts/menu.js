/** A button with a menu below it. */
import { html, useEffect, useRef, useState } from "../core/view.js";
import { Icon } from "./icons.js";

/** @typedef {{label: string, icon?: string, onClick: () => void, hint?: string}} Item */

/** @param {{label: string, icon?: string, items?: Item[], children?: any, button?: any}} props */
export function Menu({ label, icon = "more", items = [], children, button }) {
  const [open, setOpen] = useState(false);
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (!open) return undefined;
    /** @param {Event} event */
    const outside = (event) => {
      if (!element.current?.contains(/** @type {Node} */ (event.target))) setOpen(false);
    };
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [open]);
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    if (event.key === "Escape" && open) {
      setOpen(false);
      event.stopPropagation();
    }
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const all = [...(element.current?.querySelectorAll(".menu button, .menu input") ?? [])];
      const index = all.indexOf(/** @type {Element} */ (document.activeElement));
      const next = all[(index + (event.key === "ArrowDown" ? 1 : all.length - 1)) % all.length];
      if (next instanceof HTMLElement) next.focus();
      event.preventDefault();
    }
  };
  const right = open && (element.current?.getBoundingClientRect().left ?? 0) > innerWidth / 2;
  return html`<span class="anchor" ref=${element} onKeyDown=${key}>
    <button type="button" class=${button ? "button" : "button square"} aria-label=${label} aria-haspopup="true" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>${button ?? html`<${Icon} name=${icon} />`}</button>
    ${open ? html`<div class=${`menu ${right ? "at-right" : ""}`}>${children ?? items.map((item) => html`<button type="button" onClick=${() => { setOpen(false); item.onClick(); }}>${item.icon ? html`<${Icon} name=${item.icon} />` : null}<span class="grow">${item.label}</span>${item.hint ? html`<kbd>${item.hint}</kbd>` : null}</button>`)}</div>` : null}</span>`;
}
